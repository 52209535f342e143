//! What the specification says of how long a timeline grows.

use tenure::inspect::TimelineEntry;
use tenure::lifecycle::Verb;

/// Makes room for one more line of this verb: of what was not refused the twenty of the highest tokens stay, and sixty of a
/// worker's returns. Answers how many were dropped so far.
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
