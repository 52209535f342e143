//! How long a timeline may grow, as the specification has it.

use tenure::TimelineEntry;
use tenure::engine::lifecycle::Verb;

/// Makes room for one more line of this job and verb. Of its lines that were not refused, the
/// twenty with the highest tokens stay, the new one included; of the verb `Return`, sixty. Returns
/// how many lines were dropped so far.
pub(super) fn thin(lines: &mut Vec<TimelineEntry>, new: &TimelineEntry) -> u64 {
    let room = if new.verb == Verb::Return { 59 } else { 19 };
    let is_like =
        |line: &TimelineEntry| line.job == new.job && line.verb == new.verb && !line.refused;
    let mut tokens: Vec<_> =
        lines.iter().filter(|line| is_like(line)).map(|line| line.token).collect();
    if tokens.len() <= room {
        return 0;
    }
    tokens.sort_unstable_by(|a, b| b.cmp(a));
    let before = lines.iter().filter(|line| is_like(line)).map(|line| line.earlier).max();
    let known = lines.len();
    lines.retain(|line| !is_like(line) || line.token > tokens[room]);
    before.unwrap_or(0) + u64::try_from(known - lines.len()).expect("a small number")
}
