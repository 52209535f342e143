//! The walk around the ring: which groups a claim finds, and where it stops. The walk reads one index
//! entry for each lane and no further than it must; here it is compared with reading everything.

use std::collections::BTreeMap;

use postgres::Client;
use tenure::engine::clock::Chance;

use super::marks::NOW;
use super::{Case, sql_cases};
use crate::sessions::Lab;

pub(super) const CASES: &[Case] = sql_cases! {
    "claim":
    a_walk_finds_what_reading_every_lane_finds,
};

/// The bit of the lanes of suspects.
const SUSPECT: i64 = 1 << 61;

/// A ready job: its lane, and its id, which is also its age.
type Ready = (i64, i64);

/// What a walk is asked.
#[derive(Debug)]
struct Ask {
    /// The first and the last group of each stretch of the ring, in the order of the walk.
    stretches: Vec<(i64, i64)>,
    kinds: Option<Vec<i64>>,
    suspects: bool,
    /// How many groups it looks for.
    groups: i64,
    /// After how many lanes of other kinds it stops.
    to_pass: i64,
    /// For some lanes, the id up to which jobs are skipped; `None` if the claim has no marks.
    marks: Option<BTreeMap<i64, i64>>,
}

/// What a walk answers.
#[derive(Debug, Default, PartialEq, Eq)]
struct Walked {
    /// The lanes to take jobs from, each with the place of its group.
    lanes: Vec<(i64, i64)>,
    groups: i64,
    /// Where the next claim goes on, if this walk has not come to the end.
    last: Option<i64>,
    passed: i64,
}

impl Ask {
    fn random(chance: &mut Chance, ready: &[Ready]) -> Ask {
        let start = chance.below(5) as i64;
        let stretches = match chance.below(3) {
            0 => vec![(0, 9)],
            1 => vec![(start, 9), (0, start - 1)],
            _ => vec![(start + 1, start + 2), (7, 9), (0, 0)],
        };
        let kinds = (chance.below(4) > 0).then(|| (0..=chance.below(2) as i64).collect());
        let marks = (chance.below(2) == 0).then(|| {
            let mut marks = BTreeMap::new();
            for (lane, id) in ready {
                if chance.below(4) == 0 {
                    marks.insert(*lane, id - chance.below(2) as i64);
                }
            }
            marks
        });
        Ask {
            stretches,
            kinds,
            suspects: chance.below(3) > 0,
            groups: 1 + chance.below(4) as i64,
            to_pass: 1 + chance.below(6) as i64,
            marks,
        }
    }

    /// The walk of the store.
    fn walk(&self, session: &mut Client) -> Walked {
        let ranges: Vec<i64> =
            self.stretches.iter().flat_map(|(low, high)| [*low, *high]).collect();
        let lanes: Option<Vec<i64>> =
            self.marks.as_ref().map(|marks| marks.keys().copied().collect());
        let ids: Option<Vec<i64>> =
            self.marks.as_ref().map(|marks| marks.values().copied().collect());
        let row = session
            .query_one(
                "SELECT w.lanes, w.places, w.groups, w.last, w.passed
                   FROM tenure.walk($1, $2, $3, $4, $5, CASE WHEN $6::bigint[] IS NOT NULL THEN
                            ROW(NULL, NULL, NULL, NULL, $8, $6, array_fill(0::smallint, ARRAY[cardinality($6)]),
                                array_fill($8::bigint, ARRAY[cardinality($6)]), $7::bigint[])::tenure.marks END) w",
                &[&ranges, &self.kinds, &self.suspects, &(self.groups as i32), &(self.to_pass as i32), &lanes, &ids, &NOW],
            )
            .unwrap();
        let lanes: Vec<i64> = row.get::<_, Option<_>>(0).unwrap_or_default();
        let places: Vec<i32> = row.get::<_, Option<_>>(1).unwrap_or_default();
        let mut lanes: Vec<_> = lanes.into_iter().zip(places.into_iter().map(i64::from)).collect();
        lanes.sort_unstable();
        let (groups, passed): (i32, i32) = (row.get(2), row.get(4));
        Walked { lanes, groups: groups.into(), last: row.get(3), passed: passed.into() }
    }

    /// The same by reading everything.
    fn read(&self, ready: &[Ready]) -> Walked {
        let is_marked = |lane: &i64, id: &i64| {
            self.marks.as_ref().and_then(|marks| marks.get(lane)).is_some_and(|mark| id <= mark)
        };
        let serves =
            |lane: &i64| self.kinds.as_ref().is_none_or(|it| it.contains(&(lane & 32_767)));
        let mut spots: BTreeMap<(usize, i64), Vec<i64>> = BTreeMap::new();
        for (lane, id) in ready {
            let group = (lane & !SUSPECT) >> 15;
            let holds = |(low, high): &(i64, i64)| (*low..=*high).contains(&group);
            let Some(stretch) = self.stretches.iter().position(holds) else { continue };
            if !is_marked(lane, id) && (self.suspects || lane & SUSPECT == 0) {
                let lanes = spots.entry((stretch, group)).or_default();
                if !lanes.contains(lane) {
                    lanes.push(*lane);
                }
            }
        }
        let mut walked = Walked::default();
        for ((stretch, group), lanes) in spots {
            let (served, others): (Vec<_>, Vec<_>) = lanes.into_iter().partition(serves);
            walked.passed += others.len() as i64;
            if !served.is_empty() {
                walked.groups += 1;
                walked.lanes.extend(served.into_iter().map(|lane| (lane, walked.groups)));
            }
            if walked.groups == self.groups || walked.passed >= self.to_pass {
                walked.last = Some((stretch as i64 + 1) << 46 | group);
                break;
            }
        }
        walked.lanes.sort_unstable();
        walked
    }
}

fn a_walk_finds_what_reading_every_lane_finds() {
    let mut lab = Lab::new();
    let session = lab.owner();
    let mut chance = Chance::seeded(7);
    let mut met = [0; 4];
    for round in 0..60 {
        let ready: Vec<Ready> = (1..=chance.below(40) as i64)
            .map(|id| {
                let suspect = if chance.below(4) == 0 { SUSPECT } else { 0 };
                let (group, kind) = (chance.below(10) as i64, chance.below(4) as i64);
                (suspect | group << 15 | kind, id)
            })
            .collect();
        let (lanes, ids): (Vec<i64>, Vec<i64>) = ready.iter().copied().unzip();
        session.batch_execute("DELETE FROM tenure.jobs").unwrap();
        session
            .execute(
                "INSERT INTO tenure.jobs (id, state, lane, priority, run_at, token, attempt, max_attempts, crashes,
                                          max_crashes, queue, tenant, kind, args, enqueued_at)
                 SELECT u.id, 0, u.lane, 0, $3, 0, 0, 6, 0, 5, 'default', '', 'work', '1', $3
                   FROM unnest($1::bigint[], $2::bigint[]) u(lane, id)",
                &[&lanes, &ids, &NOW],
            )
            .unwrap();
        for _ in 0..12 {
            let ask = Ask::random(&mut chance, &ready);
            let (found, expected) = (ask.walk(session), ask.read(&ready));
            assert_eq!(found, expected, "round {round}: {ask:?}\nready: {ready:?}");
            let is_full = found.groups == ask.groups;
            met[0] += usize::from(is_full && ask.marks.is_some());
            met[1] += usize::from(is_full && ask.marks.is_none());
            met[2] += usize::from(!is_full && found.last.is_some());
            met[3] += usize::from(found.last.is_none());
        }
    }
    assert!(met.iter().all(|times| *times > 20), "each end was met some times: {met:?}");
}
