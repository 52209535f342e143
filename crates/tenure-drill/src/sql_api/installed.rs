//! What an installation makes and replaces.

use postgres::error::SqlState;

use super::{Case, sql_cases};
use crate::sessions::Lab;

pub(super) const CASES: &[Case] = sql_cases! {
    "installed":
    a_type_stays_as_it_is_or_is_made_anew_without_what_is_somebody_elses,
};

fn a_type_stays_as_it_is_or_is_made_anew_without_what_is_somebody_elses() {
    const CLEAN: &str =
        "DROP FUNCTION IF EXISTS public.mine; DROP TYPE IF EXISTS tenure.shape CASCADE";
    let mut lab = Lab::new();
    let mut session = lab.session();
    session.batch_execute(CLEAN).unwrap();
    let put = |columns: &str| format!("SELECT tenure.put_type('shape', '{columns}')");
    let made = "SELECT 'tenure.shape'::regtype::oid::bigint";
    let users = "SELECT count(*) FROM pg_proc WHERE proname IN ('of_shape', 'of_shapes')";
    session.batch_execute(&put("a integer, b text")).unwrap();
    let first = lab.number(made);
    session
        .batch_execute(
            "CREATE FUNCTION tenure.of_shape(s tenure.shape) RETURNS int LANGUAGE sql AS 'SELECT 1';
             CREATE FUNCTION tenure.of_shapes(s tenure.shape[]) RETURNS int LANGUAGE sql AS 'SELECT 1'",
        )
        .unwrap();
    session.batch_execute(&put("a integer, b text")).unwrap();
    assert_eq!((lab.number(made), lab.number(users)), (first, 2), "nothing is to be done");

    session.batch_execute(&put("b text, a integer")).unwrap();
    let second = lab.number(made);
    assert!(second != first);
    assert_eq!(lab.number(users), 0, "the files that follow make them again");

    session
        .batch_execute(
            "CREATE FUNCTION public.mine(s tenure.shape) RETURNS int LANGUAGE sql AS 'SELECT 1'",
        )
        .unwrap();
    let refused = session.batch_execute(&put("a integer")).unwrap_err();
    assert_eq!(refused.code(), Some(&SqlState::DEPENDENT_OBJECTS_STILL_EXIST), "{refused}");
    assert_eq!(lab.number(made), second);
    session.batch_execute(CLEAN).unwrap();
}
