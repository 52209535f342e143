//! Puts the functions of this release in the place of an older release's.
//!
//! `CREATE OR REPLACE` refuses a function whose result type has changed. If the types of the
//! parameters have changed, it adds the new function and leaves the old one beside it. So what
//! cannot be replaced is dropped first, and what the new release does not have is dropped
//! afterwards. A right to call a function stays with the function's name.

use postgres::error::SqlState;
use postgres::types::Type;

use super::texts;
use crate::store::postgres::schema::Schema;
use crate::store::postgres::session::Session;

type Done = Result<(), postgres::Error>;

/// Runs these files where functions of another release are installed.
pub(super) fn replace(session: &mut Session, schema: &Schema, files: &[String]) -> Done {
    let older = Older::find(session, schema)?;
    // The last file is `plans`, which names functions without their parameters: by then only one of
    // each name may be left.
    let Some((plans, files)) = files.split_last() else { return Ok(()) };
    for text in files {
        // Most files only replace bodies.
        if !try_batch(session, schema, text)? {
            for statement in statements(text) {
                put(session, schema, &older, statement)?;
            }
        }
    }
    older.drop_named(session, schema, &texts::function_names())?;
    session.batch(&schema.apply(plans))?;
    older.grant(session, schema)
}

/// Runs one statement. If it cannot replace an existing function or view, drops that first.
fn put(session: &mut Session, schema: &Schema, older: &Older, statement: &str) -> Done {
    if try_batch(session, schema, statement)? {
        return Ok(());
    }
    match texts::made_by(statement).first().and_then(|part| part.split_once(' ')) {
        Some(("function", name)) => {
            older.drop_named(session, schema, &[name.to_owned()])?;
        }
        Some(("view", name)) => {
            session.batch(&format!("DROP VIEW {}.{name}", schema.quoted()))?;
        }
        _ => {}
    }
    session.batch(&schema.apply(statement))
}

/// Runs statements, and rolls them back if one of them cannot replace what exists. Returns whether
/// they took effect.
fn try_batch(session: &mut Session, schema: &Schema, text: &str) -> Result<bool, postgres::Error> {
    session.batch("SAVEPOINT replacing")?;
    match session.batch(&schema.apply(text)) {
        Ok(()) => session.batch("RELEASE replacing").map(|()| true),
        Err(error) if is_another_shape(&error) => {
            session.batch("ROLLBACK TO replacing; RELEASE replacing").map(|()| false)
        }
        Err(error) => Err(error),
    }
}

/// Whether the statement failed because the existing function or view has another result type,
/// other parameter names, or other columns.
fn is_another_shape(error: &postgres::Error) -> bool {
    let shapes = [SqlState::INVALID_FUNCTION_DEFINITION, SqlState::INVALID_TABLE_DEFINITION];
    error.code().is_some_and(|code| shapes.contains(code))
}

/// The functions of the older release, and which roles have rights on its functions and views.
struct Older {
    /// Each function's row in the catalog: its id (`oid`) and the version of the row (`xmin`).
    functions: Vec<String>,
    /// The rights that were granted: on what, as `FUNCTION claim`, and to which role.
    what: Vec<String>,
    to: Vec<String>,
}

impl Older {
    fn find(session: &mut Session, schema: &Schema) -> Result<Older, postgres::Error> {
        const FUNCTIONS: &str = "SELECT p.oid || ' ' || p.xmin FROM pg_proc p \
            JOIN pg_namespace n ON n.oid = p.pronamespace WHERE n.nspname = $1";
        const RIGHTS: &str = "SELECT DISTINCT o.what, coalesce(quote_ident(r.rolname), 'PUBLIC') \
            FROM pg_namespace n CROSS JOIN LATERAL ( \
                SELECT 'FUNCTION ' || p.proname AS what, a.grantee FROM pg_proc p, aclexplode(p.proacl) a \
                 WHERE p.pronamespace = n.oid AND a.grantee <> p.proowner \
                UNION ALL \
                SELECT 'VIEW ' || c.relname, a.grantee FROM pg_class c, aclexplode(c.relacl) a \
                 WHERE c.relnamespace = n.oid AND c.relkind = 'v' AND a.grantee <> c.relowner \
                   AND a.privilege_type = 'SELECT') o \
            LEFT JOIN pg_roles r ON r.oid = o.grantee WHERE n.nspname = $1";
        let name: [(&(dyn postgres::types::ToSql + Sync), Type); 1] =
            [(&schema.name(), Type::TEXT)];
        let rows = session.query(FUNCTIONS, &name)?;
        let functions = rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
        let (mut what, mut to) = (Vec::new(), Vec::new());
        for row in session.query(RIGHTS, &name)? {
            what.push(row.try_get(0)?);
            to.push(row.try_get(1)?);
        }
        Ok(Older { functions, what, to })
    }

    /// Drops functions of these names that are still the older release's. Fails if an object of the
    /// user depends on one: then the function must stay.
    fn drop_named(&self, session: &mut Session, schema: &Schema, names: &[String]) -> Done {
        const DROP: &str = "SELECT format('DROP FUNCTION %I.%I(%s)', n.nspname, p.proname, \
                pg_get_function_identity_arguments(p.oid)) \
            FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace \
            WHERE n.nspname = $1 AND p.proname = ANY ($2) AND p.oid || ' ' || p.xmin = ANY ($3)";
        let rows = session.query(
            DROP,
            &[
                (&schema.name(), Type::TEXT),
                (&names, Type::TEXT_ARRAY),
                (&self.functions, Type::TEXT_ARRAY),
            ],
        )?;
        rows.iter().try_for_each(|row| session.batch(row.try_get(0)?))
    }

    /// Grants the rights again, on the functions and views that have the same names.
    fn grant(&self, session: &mut Session, schema: &Schema) -> Done {
        const GRANT: &str = "SELECT format('GRANT EXECUTE ON FUNCTION %I.%I(%s) TO %s', n.nspname, p.proname, \
                pg_get_function_identity_arguments(p.oid), g.role) \
            FROM unnest($2::text[], $3::text[]) g(what, role) \
            JOIN pg_namespace n ON n.nspname = $1 \
            JOIN pg_proc p ON p.pronamespace = n.oid AND g.what = 'FUNCTION ' || p.proname \
            UNION ALL \
            SELECT format('GRANT SELECT ON %I.%I TO %s', n.nspname, c.relname, g.role) \
            FROM unnest($2::text[], $3::text[]) g(what, role) \
            JOIN pg_namespace n ON n.nspname = $1 \
            JOIN pg_class c ON c.relnamespace = n.oid AND c.relkind = 'v' AND g.what = 'VIEW ' || c.relname";
        let rows = session.query(
            GRANT,
            &[
                (&schema.name(), Type::TEXT),
                (&self.what, Type::TEXT_ARRAY),
                (&self.to, Type::TEXT_ARRAY),
            ],
        )?;
        rows.iter().try_for_each(|row| session.batch(row.try_get(0)?))
    }
}

/// The statements of a file, each with the comments before it.
fn statements(text: &str) -> Vec<&str> {
    let (mut found, mut from, mut at) = (Vec::new(), 0, 0);
    let mut closing: Option<&str> = None;
    while at < text.len() {
        let rest = &text[at..];
        let c = rest.chars().next().map_or(1, char::len_utf8);
        at += match closing {
            Some(end) if rest.starts_with(end) => {
                closing = None;
                end.len()
            }
            Some(_) => c,
            None if rest.starts_with("--") => rest.find('\n').unwrap_or(rest.len()),
            None if rest.starts_with("$$") => {
                closing = Some("$$");
                2
            }
            None if rest.starts_with('\'') => {
                closing = Some("'");
                1
            }
            None if rest.starts_with(';') => {
                found.push(&text[from..=at]);
                from = at + 1;
                1
            }
            None => c,
        };
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_cut_into_its_statements() {
        let text =
            "-- a; b\nSELECT ';' || '--';\nCREATE x AS $$ BEGIN 'it''s'; END $$;\n-- the end\n";
        let expected = ["-- a; b\nSELECT ';' || '--';", "\nCREATE x AS $$ BEGIN 'it''s'; END $$;"];
        assert_eq!(statements(text), expected);
    }

    #[test]
    fn every_file_is_cut_without_a_rest_and_each_statement_makes_one_thing_at_most() {
        for (file, text) in texts::FUNCTIONS {
            let all = statements(text);
            let rest = &text[all.iter().map(|statement| statement.len()).sum::<usize>()..];
            let is_comment = |line: &str| line.trim().is_empty() || line.starts_with("--");
            assert!(rest.lines().all(is_comment), "{file} ends with {rest:?}");
            for statement in all {
                assert!(texts::made_by(statement).len() <= 1, "{file}: {statement}");
            }
        }
    }
}
