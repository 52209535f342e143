//! `tenure effects list`: a page of the ledger, the effects of the newest jobs first.

use anyhow::Result;
use tenure::engine::inspect::{EffectFilter, EffectView};
use tenure::engine::job::{BATCH_LIMIT, JobId, State, shorten};
use tenure::engine::store::Store;
use tenure::json;

use crate::output::{Column, Table};
use crate::time::{now, relative};
use crate::{Answer, Session, args};

/// List effects, those of the newest jobs first
#[derive(clap::Args)]
#[command(after_help = "\
An effect is in doubt if its intent was written and its outcome was not, and whoever wrote it does
not hold the job any more: it may have happened. KEY is what the other side knows it by.

Example:
  tenure effects list --in-doubt")]
pub(crate) struct Args {
    /// Only those of which nobody knows whether they happened
    #[arg(long)]
    in_doubt: bool,

    /// Only of this job
    #[arg(long, value_name = "ID", value_parser = args::job_id)]
    job: Option<JobId>,

    /// Only of jobs older than this one: the last of the page before
    #[arg(long, value_name = "ID", value_parser = args::job_id)]
    before: Option<JobId>,

    /// How many at most, up to 1000
    #[arg(long, value_name = "N", default_value_t = 50)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=BATCH_LIMIT as i64))]
    limit: u16,
}

pub(crate) fn run(args: &Args, session: &mut Session) -> Result<Answer> {
    let filter = EffectFilter { in_doubt: args.in_doubt, job: args.job, before: args.before };
    let mut store = session.open()?;
    let limit = usize::from(args.limit);
    // One more than asked for shows whether there are more, up to the store's limit.
    let page = store.effects(&filter, BATCH_LIMIT.min(limit + 1))?;
    let (effects, more) = whole_jobs(page, limit);
    if session.out.is_json() {
        let identity = store.identity()?;
        let views: Vec<_> = effects.iter().map(|view| json::effect(view, &identity)).collect();
        session.out.document(&views)?;
    } else if effects.is_empty() {
        session.out.say(nothing(args))?;
    } else {
        session.out.table(&table(&effects, &mut *store)?)?;
    }
    match more {
        None => {}
        Some(More::Of(job)) => session.out.say(&format!(
            "job {job} has more effects; see them with a higher --limit and --job {job}"
        ))?,
        Some(More::Before(job)) => session.out.say(&format!(
            "there may be more; see them with the same command and --before {job}"
        ))?,
    }
    // If the job is running, its holder decides.
    let doubtful = effects.iter().find(|view| view.in_doubt && view.state != State::Running);
    if let (Some(EffectView { effect, .. }), false) = (doubtful, session.out.is_json()) {
        let (job, name) = (effect.job, &effect.name);
        session.out.say(&format!(
            "ask the other side whether it happened, by its key, and say so with: \
             tenure effects resolve {job} {name} --committed JSON, or --resend"
        ))?;
    }
    Ok(Answer::Yes)
}

fn nothing(args: &Args) -> &'static str {
    match args {
        Args { in_doubt: true, job: None, before: None, .. } => "no effect is in doubt",
        Args { in_doubt: true, .. } => {
            "no such effect is in doubt; all that are: tenure effects list --in-doubt"
        }
        Args { job: None, before: None, .. } => "no job has had an effect yet",
        _ => "no such effects; all of them: tenure effects list",
    }
}

/// What a page leaves out.
#[derive(Debug, PartialEq, Eq)]
enum More {
    /// Effects of this job.
    Of(JobId),
    /// Effects of jobs before this one.
    Before(JobId),
}

/// Cuts a page so that it ends with a whole job: the next page begins with an older job, so effects
/// of a job that were cut off would never be shown. If the page has one job only, keeps what fits.
fn whole_jobs(mut page: Vec<EffectView>, limit: usize) -> (Vec<EffectView>, Option<More>) {
    let is_cut = page.len() > limit || page.len() == BATCH_LIMIT;
    let Some(last) = page.last().map(|view| view.effect.job).filter(|_| is_cut) else {
        return (page, None);
    };
    let whole = page.iter().position(|view| view.effect.job == last).unwrap_or(0);
    page.truncate(if whole == 0 { limit } else { whole });
    match page.last().map(|view| view.effect.job) {
        Some(kept) if kept != last => (page, Some(More::Before(kept))),
        _ => (page, Some(More::Of(last))),
    }
}

/// The effects of one job.
pub(crate) fn of_job(store: &mut dyn Store, job: JobId) -> Result<Vec<EffectView>> {
    let filter = EffectFilter { job: Some(job), ..EffectFilter::default() };
    Ok(store.effects(&filter, BATCH_LIMIT)?)
}

/// Effects for people.
pub(crate) fn table(effects: &[EffectView], store: &mut dyn Store) -> Result<Table> {
    use Column::{Number, Text};
    let (now, identity) = (now(), store.identity()?);
    let mut table = Table::new(&[
        Number("JOB"),
        Text("EFFECT"),
        Text("STANDING"),
        Text("KIND"),
        Text("JOB STATE"),
        Number("TOKEN"),
        Text("OPENED"),
        Text("KEY"),
        Text("RESULT OR NOTE"),
    ]);
    for view in effects {
        let EffectView { effect, in_doubt, state, kind, .. } = view;
        let standing = if *in_doubt { "in doubt" } else { effect.standing.name() };
        let result = effect.result.as_ref().map(|result| result.as_str());
        table.row(vec![
            effect.job.to_string(),
            effect.name.to_string(),
            standing.to_owned(),
            kind.to_string(),
            state.to_string(),
            effect.token.to_string(),
            relative(effect.opened_at, now),
            view.key(&identity).to_string(),
            shorten(result.or(effect.note.as_deref()).unwrap_or_default(), 60),
        ]);
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    use tenure::engine::job::{Name, Tenant};
    use tenure::engine::ledger::{EffectRecord, Standing, effect_name};
    use tenure::{Timestamp, Token};

    use super::*;

    fn page(jobs: &[i64]) -> Vec<EffectView> {
        let effect = |job: &i64| EffectView {
            effect: EffectRecord {
                job: JobId(*job),
                name: effect_name("e").unwrap(),
                standing: Standing::Open,
                token: Token(1),
                opened_at: Timestamp::from_millis(0),
                ended_at: None,
                result: None,
                note: None,
            },
            in_doubt: true,
            state: State::Parked,
            kind: Name::check("kind", "k").unwrap(),
            tenant: Tenant::default(),
        };
        jobs.iter().map(effect).collect()
    }

    fn cut(jobs: &[i64], limit: usize) -> (Vec<i64>, Option<More>) {
        let (page, more) = whole_jobs(page(jobs), limit);
        (page.iter().map(|view| view.effect.job.0).collect(), more)
    }

    #[test]
    fn a_page_ends_with_a_job_that_is_wholly_on_it() {
        assert_eq!(cut(&[], 2), (vec![], None));
        assert_eq!(cut(&[9, 8], 2), (vec![9, 8], None));
        assert_eq!(cut(&[9, 8, 7], 2), (vec![9, 8], Some(More::Before(JobId(8)))));
        assert_eq!(cut(&[9, 8, 8], 2), (vec![9], Some(More::Before(JobId(9)))));
        assert_eq!(cut(&[9, 9, 9], 2), (vec![9, 9], Some(More::Of(JobId(9)))));
        let full = [vec![9], vec![8; BATCH_LIMIT - 1]].concat();
        assert_eq!(cut(&full, BATCH_LIMIT), (vec![9], Some(More::Before(JobId(9)))));
    }
}
