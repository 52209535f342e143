//! `tenure drill mutants --machine`: every generated change of the engines' SQL, and what noticed.

use std::str::FromStr;

use anyhow::Result;
use serde::Serialize;
use tenure_drill::mutants::Stock;
use tenure_drill::mutants::machine::{self, End, Fate, Figures, Mutant};

use super::Args;
use crate::args::BadInput;
use crate::commands::drill::server::Server;
use crate::output::say;
use crate::{Answer, Session};

/// Every Nth mutant from the Kth on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part {
    place: usize,
    of: usize,
}

impl FromStr for Part {
    type Err = String;

    fn from_str(text: &str) -> Result<Part, String> {
        let numbers = text.split_once('/').map(|(place, of)| (place.parse(), of.parse()));
        match numbers {
            Some((Ok(place), Ok(of))) if 1 <= place && place <= of => Ok(Part { place, of }),
            _ => Err("a part is K/N with K from 1 to N, such as 2/5".into()),
        }
    }
}

pub(super) fn run(args: &Args, session: &mut Session) -> Result<Answer> {
    let mutants = wanted(args)?;
    if args.list {
        if session.out.is_json() {
            let names: Vec<&str> = mutants.iter().map(|mutant| mutant.name.as_str()).collect();
            session.out.document(&names)?;
        } else {
            mutants.iter().try_for_each(|mutant| session.out.line(&mutant.name))?;
        }
        return Ok(Answer::Yes);
    }
    let survivors = machine::survivors();
    let is_trusted =
        |mutant: &Mutant| args.unlisted && survivors.contains_key(mutant.name.as_str());
    let (trusted, mutants): (Vec<Mutant>, Vec<Mutant>) = mutants.into_iter().partition(is_trusted);
    let server = mutants.iter().any(|mutant| mutant.stock == Stock::Postgres);
    let _server = server.then(|| Server::find(session)).transpose()?;
    session.out.flush()?;
    let (mut done, all) = (0, mutants.len());
    let mut fates = machine::hunt(&mutants, &mut |fate| {
        done += 1;
        say(&format!("{done}/{all} {} ms {}: {}", fate.took_ms, word(&fate.end), fate.mutant));
    });
    fates.extend(trusted.into_iter().map(Fate::trusted));
    let figures = Figures::of(&fates);
    if session.out.is_json() {
        session.out.document(&View { figures: &figures, fates: &fates })?;
    } else {
        for fate in fates.iter().filter(|fate| fate.end == End::Survived) {
            session.out.line(&format!("survived: {}", fate.mutant))?;
        }
        session.out.line(&figures.to_string())?;
    }
    if figures.agree() {
        return Ok(Answer::Yes);
    }
    let told =
        |names: &[String]| names.iter().map(|name| format!("\n  {name}")).collect::<String>();
    Ok(Answer::No(format!(
        "the list of survivors is not right; not listed:{}\nlisted, but they do not survive:{}",
        told(&figures.unlisted),
        told(&figures.dead)
    )))
}

fn word(end: &End) -> String {
    match end {
        End::Killed(by) => format!("killed by {by}"),
        End::Invalid(why) => format!("invalid ({})", why.chars().take(120).collect::<String>()),
        End::Survived => "SURVIVED".to_owned(),
    }
}

fn wanted(args: &Args) -> Result<Vec<Mutant>> {
    let named = |mutant: &Mutant| {
        args.only.as_ref().is_none_or(|words| mutant.name.contains(words.as_str()))
    };
    let of = |mutant: &Mutant| args.of.is_none_or(|of| of.is(mutant.stock));
    let in_file =
        |mutant: &Mutant| args.files.is_empty() || args.files.iter().any(|it| it == mutant.file);
    let part = args.part.unwrap_or(Part { place: 1, of: 1 });
    let all =
        machine::all().into_iter().filter(|mutant| named(mutant) && of(mutant) && in_file(mutant));
    let mutants: Vec<Mutant> = all.skip(part.place - 1).step_by(part.of).collect();
    if mutants.is_empty() {
        let why =
            "no mutant is called so; `tenure drill mutants --machine --list` tells which there are";
        return Err(BadInput(why.into()).into());
    }
    Ok(mutants)
}

#[derive(Serialize)]
struct View<'a> {
    figures: &'a Figures,
    fates: &'a [Fate],
}
