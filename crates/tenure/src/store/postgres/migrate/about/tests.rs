//! Tests of which schemas can be used, brought up to date and removed, without any database.

use super::*;

fn applied() -> Vec<Applied> {
    let of = |step: &crate::store::migrate::Migration| Applied {
        version: step.version,
        name: step.name.to_owned(),
        checksum: step.checksum(),
        min_client: step.min_client,
        applied_at: Timestamp::from_millis(0),
    };
    MIGRATIONS.iter().map(of).collect()
}

fn installed() -> Installed {
    let Functions { checksum, release, .. } = Functions::own();
    Installed { checksum, client: CLIENT, release, at: Timestamp::from_millis(0) }
}

/// A database that we own, without the schema.
fn empty() -> About {
    About {
        schema: "tenure".into(),
        is_open: true,
        role: "ann".into(),
        database: "shop".into(),
        has_roles: true,
        ..About::default()
    }
}

/// The same with a whole schema.
fn whole() -> About {
    About {
        exists: true,
        is_usable: true,
        owner: "ann".into(),
        is_owner: true,
        is_ours: true,
        parts: texts::all_parts(),
        history: Some(History { applied: applied(), functions: Some(installed()) }),
        ..empty()
    }
}

fn without(part: &str) -> About {
    let mut about = whole();
    about.parts.retain(|found| found != part);
    about
}

#[track_caller]
fn refused(verdict: Result<(), Refusal>, problem: &str, next: &str) {
    let refusal = verdict.unwrap_err();
    assert!(refusal.problem.contains(problem) && refusal.next.contains(next), "{refusal:?}");
}

#[test]
fn a_whole_schema_is_used_and_has_nothing_to_do() {
    assert_eq!(whole().can_be_used(), Ok(()));
    assert_eq!(whole().can_go_up(), Ok(()));
    assert_eq!(whole().can_be_removed(), Ok(()));
    assert!(whole().is_current(&Functions::own()));
    assert!(!empty().is_current(&Functions::own()));
}

#[test]
fn a_database_without_it_can_have_it_made() {
    refused(empty().can_be_used(), "no schema tenure", "tenure migrate up");
    assert_eq!(empty().can_go_up(), Ok(()));
    let made_beforehand = About { exists: true, is_usable: true, ..empty() };
    refused(made_beforehand.can_be_used(), "no schema tenure", "tenure migrate up");
    assert_eq!(made_beforehand.can_go_up(), Ok(()));
}

#[test]
fn what_a_role_may_not_make_it_is_told_before() {
    let closed = About { is_open: false, ..empty() };
    refused(
        closed.can_go_up(),
        "ann may not make a schema",
        r#"CREATE ON DATABASE "shop" TO "ann""#,
    );
    let of_bob = About { exists: true, is_open: false, owner: "bob".into(), ..empty() };
    refused(of_bob.can_go_up(), "may not make tables", "run it as bob");
    let installed_by_bob = About { is_owner: false, owner: "bob".into(), ..whole() };
    refused(installed_by_bob.can_go_up(), "belongs to bob", "run it as bob");
    refused(installed_by_bob.can_be_removed(), "belongs to bob", "run it as bob");
    assert_eq!(installed_by_bob.can_be_used(), Ok(()));
}

#[test]
fn a_schema_of_somebody_else_is_left_alone() {
    let parts = vec!["table books".to_owned(), "table migrations".to_owned()];
    let foreign = About { is_ours: false, parts, history: None, ..whole() };
    for verdict in [foreign.can_be_used(), foreign.can_go_up(), foreign.can_be_removed()] {
        refused(verdict, "is not Tenure's; it holds table books", "?schema=NAME");
    }
}

#[test]
fn a_lost_table_is_not_made_up_for() {
    for part in ["table done", "table payloads", "sequence job_id"] {
        let about = without(part);
        refused(about.can_be_used(), &format!("it lacks {part}"), "restore the database");
        refused(about.can_go_up(), &format!("it lacks {part}"), "tenure migrate down --yes");
        assert!(about.status().is_err());
        assert_eq!(about.can_be_removed(), Ok(()), "{part}");
    }
    let blank = About { history: Some(History::default()), ..whole() };
    refused(blank.can_go_up(), "does not say what was applied", "tenure migrate down --yes");
}

#[test]
fn a_lost_function_is_put_back() {
    for part in ["function claim_many", "view record", "trigger fence", "type claim_row"] {
        let about = without(part);
        refused(about.can_be_used(), &format!("lacks {part}"), "tenure migrate up");
        assert_eq!(about.can_go_up(), Ok(()));
        assert!(!about.is_current(&Functions::own()), "{part}");
        // The functions come last.
        assert_eq!(about.status().unwrap().pop().unwrap().standing, MigrationState::Pending);
    }
    let unread = About { history: None, is_owner: false, owner: "bob".into(), ..whole() };
    refused(unread.can_be_used(), "lacks function history", "have bob run: tenure migrate up");
}

#[test]
fn functions_of_another_binary_are_used_if_they_are_not_older() {
    let with = |checksum: &str, client| {
        let functions = Some(Installed { checksum: checksum.into(), client, ..installed() });
        About { history: Some(History { applied: applied(), functions }), ..whole() }
    };
    let other = with("other", CLIENT);
    assert_eq!(other.can_be_used(), Ok(()));
    assert!(!other.is_current(&Functions::own()));
    refused(with("old", CLIENT - 1).can_be_used(), "older than this binary", "tenure migrate up");
    let newer = with("new", CLIENT + 1);
    assert_eq!(newer.can_be_used(), Ok(()));
    assert_eq!(newer.can_go_up(), Ok(()));
    refused(newer.can_go_back(), "from a newer binary", "upgrade tenure here too");
    assert_eq!(newer.newer_than(&Functions::own()), Some(installed().release));
    // This binary does not know which functions another one has, so it misses none.
    assert_eq!(About { parts: without("view job").parts, ..newer }.can_be_used(), Ok(()));
}

#[test]
fn functions_of_a_later_release_are_newer_and_those_of_an_earlier_one_are_not() {
    let own = Functions::own();
    let with = |checksum: &str, release| {
        let functions = Some(Installed { checksum: checksum.into(), release, ..installed() });
        About { history: Some(History { applied: applied(), functions }), ..whole() }
    };
    let later = with("later", own.release + 1);
    assert_eq!(later.newer_than(&own), Some(own.release + 1));
    assert_eq!((later.can_go_up(), later.can_go_back()), (Ok(()), Ok(())));
    let standing = later.status().unwrap().pop().unwrap().standing;
    assert!(matches!(standing, MigrationState::Newer(_)), "{standing:?}");
    for (checksum, release) in
        [("earlier", own.release - 1), ("uncounted", 0), ("of a build between", own.release)]
    {
        assert_eq!(with(checksum, release).newer_than(&own), None, "{checksum}");
        let standing = with(checksum, release).status().unwrap().pop().unwrap().standing;
        assert!(matches!(standing, MigrationState::Differs(_)), "{checksum}: {standing:?}");
    }
    assert_eq!(whole().newer_than(&own), None);
}

#[test]
fn tables_of_another_binary_are_left_alone() {
    let with = |change: fn(&mut Applied)| {
        let mut about = whole();
        change(&mut about.history.as_mut().unwrap().applied[0]);
        about
    };
    let differs = with(|first| first.checksum = "other".into());
    for verdict in [differs.can_be_used(), differs.can_go_up(), differs.can_be_removed()] {
        refused(verdict, "differs from this binary's", "use the binary");
    }
    let mut next = whole();
    let newer = Applied { version: 99, min_client: CLIENT + 1, ..applied().remove(0) };
    next.history.as_mut().unwrap().applied.push(newer);
    for verdict in [next.can_be_used(), next.can_go_up(), next.can_be_removed()] {
        refused(verdict, "needs a newer tenure", "upgrade this binary");
    }
}

#[test]
fn what_others_keep_in_the_schema_is_not_removed() {
    let with = |part: &str| {
        let mut about = whole();
        about.parts.push(part.to_owned());
        about
    };
    for part in ["table mine", "function claim", "view mine", "type mood"] {
        refused(with(part).can_be_removed(), &format!("nothing was removed: {part}"), "move it");
        assert_eq!(with(part).can_be_used(), Ok(()), "{part}");
    }
    assert_eq!(with("trigger mine").can_be_removed(), Ok(()));
}

#[test]
fn roles_are_promised_only_where_they_can_be_made() {
    assert_eq!(whole().can_have_roles(), Ok(()));
    let humble = About { has_roles: false, ..whole() };
    refused(humble.can_have_roles(), "ann may not make roles", "CREATEROLE");
    let longest = About { schema: "s".repeat(54), ..whole() };
    assert_eq!(longest.can_have_roles(), Ok(()));
    let long = About { schema: "s".repeat(55), ..whole() };
    refused(long.can_have_roles(), "too long", "leave --roles out");
}

#[test]
fn what_a_superuser_adds_belongs_to_the_owner() {
    assert!(!whole().acts_for_another());
    assert!(About { role: "root".into(), ..whole() }.acts_for_another());
    assert!(!About { role: "root".into(), ..empty() }.acts_for_another());
}

#[test]
fn a_schema_from_before_the_first_version_is_refused_with_what_to_do() {
    let mut about = whole();
    let kernel =
        Applied { name: "kernel".into(), checksum: "of old".into(), ..applied().remove(0) };
    about.history = Some(History { applied: vec![kernel], functions: Some(installed()) });
    for verdict in [about.can_be_used(), about.can_go_up(), about.status().map(drop)] {
        refused(verdict, "before the first version", "DROP SCHEMA \"tenure\" CASCADE");
    }
}
