//! The rights of the connected role, compared with those of Tenure's three roles, and the GRANT for
//! what is missing.
//!
//! The rights of the roles are read from the statements that grant them, so that there is only one
//! list. When the server refuses a call, its message names the function. The message may be
//! translated, but the name in it is not.

use postgres::types::Type;

use super::Postgres;
use super::schema::Schema;
use super::session::Session;
use crate::store::Result;

/// What a role is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Part {
    Worker,
    Enqueuer,
    Reader,
}

impl Part {
    const ALL: [Part; 3] = [Part::Worker, Part::Enqueuer, Part::Reader];

    /// The name of the part in the names of roles, after the schema.
    pub fn name(self) -> &'static str {
        match self {
            Part::Worker => "worker",
            Part::Enqueuer => "enqueuer",
            Part::Reader => "reader",
        }
    }

    /// The functions that this part may call.
    fn functions(self) -> Vec<&'static str> {
        const GRANTS: &str = include_str!("../../../sql/postgres/grants.sql");
        let role = format!("\"tenure_{}\"", self.name());
        let mut found = Vec::new();
        for statement in GRANTS.split(';') {
            let Some((_, rest)) = statement.split_once("GRANT EXECUTE ON FUNCTION ") else {
                continue;
            };
            let Some((functions, roles)) = rest.split_once(" TO ") else { continue };
            if roles.split(',').any(|to| to.trim() == role) {
                let names = functions.split(',').map(str::trim);
                found.extend(names.filter_map(|name| name.strip_prefix("tenure.")));
            }
        }
        found
    }

    /// The functions that no other part may call.
    fn own_functions(self) -> Vec<&'static str> {
        let others = Part::ALL.into_iter().filter(|part| *part != self);
        let others: Vec<_> = others.flat_map(Part::functions).collect();
        self.functions().into_iter().filter(|name| !others.contains(name)).collect()
    }
}

/// The rights of the connected role.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rights {
    /// The name of the role.
    pub role: String,
    /// The owner of the schema.
    pub owner: String,
    /// Whether the role has the owner's rights, and may do everything.
    pub is_owner: bool,
    is_usable: bool,
    /// The schema's name, plain and quoted for SQL.
    schema: (String, String),
    functions: Vec<String>,
    may: Vec<String>,
    roles: Vec<String>,
    member_of: Vec<String>,
}

impl Rights {
    pub(super) fn of(session: &mut Session, schema: &Schema) -> Result<Rights, postgres::Error> {
        const RIGHTS: &str = include_str!("../../../sql/postgres/rights.sql");
        let row = session.query_one(RIGHTS, &[(&schema.name(), Type::TEXT)])?;
        Ok(Rights {
            role: row.try_get("role")?,
            owner: row.try_get("owner")?,
            is_owner: row.try_get("is_owner")?,
            is_usable: row.try_get("is_usable")?,
            schema: (schema.name().to_owned(), schema.quoted().to_owned()),
            functions: row.try_get("functions")?,
            may: row.try_get("may")?,
            roles: row.try_get("roles")?,
            member_of: row.try_get("member_of")?,
        })
    }

    /// What the role is for: the parts of which it is a member, or has some of the rights.
    pub fn parts(&self) -> Vec<Part> {
        let may_some = |names: &[&str]| names.iter().any(|name| self.may(name));
        let is_worker = self.is_member(Part::Worker) || may_some(&Part::Worker.own_functions());
        let is_meant = |part: &Part| match part {
            Part::Worker => is_worker,
            // A worker may call everything that an enqueuer may.
            Part::Enqueuer => {
                self.is_member(Part::Enqueuer) || !is_worker && self.may("enqueue_many")
            }
            Part::Reader => self.is_member(Part::Reader) || may_some(&Part::Reader.own_functions()),
        };
        Part::ALL.into_iter().filter(is_meant).collect()
    }

    /// The functions that a role for this part should be able to call, and cannot.
    pub fn missing(&self, part: Part) -> Vec<&'static str> {
        let is_missing =
            |name: &&str| self.functions.iter().any(|known| known == name) && !self.may(name);
        part.functions().into_iter().filter(is_missing).collect()
    }

    /// The statement by which the owner grants what is missing.
    pub fn grant(&self, part: Part) -> String {
        let names: Vec<_> =
            self.missing(part).iter().map(|name| format!("{}.{name}", self.schema.1)).collect();
        let to = if self.is_member(part) { self.named(part) } else { self.role.clone() };
        format!("GRANT EXECUTE ON FUNCTION {} TO \"{to}\"", names.join(", "))
    }

    /// What to do about a refusal with this message.
    pub(super) fn advice(&self, refusal: &str) -> Option<String> {
        let owner = &self.owner;
        if self.role.is_empty() || self.functions.is_empty() {
            return None;
        }
        // Take the last match: the text before the server's message names the call, which may have
        // the name of another function.
        let words = refusal.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let refused = words.rev().find(|word| self.functions.iter().any(|name| name == word));
        let refused = match (refused, self.is_usable) {
            (Some(refused), _) => refused,
            (None, true) => return None,
            (None, false) => return Some(self.usage()),
        };
        let lacking = |part: &Part| self.missing(*part).contains(&refused);
        if let Some(part) = self.parts().into_iter().find(lacking).filter(|_| self.is_usable) {
            return Some(format!("have {owner} run: {}", self.grant(part)));
        }
        let parts: Vec<Part> =
            Part::ALL.into_iter().filter(|part| part.functions().contains(&refused)).collect();
        if parts.is_empty() {
            return Some(format!("only {owner} may, who owns the schema: connect as that role"));
        }
        let made = parts.into_iter().filter(|part| self.roles.contains(&self.named(*part)));
        let grants: Vec<String> = made.map(|part| self.membership(part)).collect();
        Some(match grants.as_slice() {
            [] if !self.is_usable => self.usage(),
            [] => {
                let (function, role) = (format!("{}.{refused}", self.schema.1), &self.role);
                format!("have {owner} run: GRANT EXECUTE ON FUNCTION {function} TO \"{role}\"")
            }
            [grant] => format!("have {owner} run: {grant}"),
            several => format!(
                "have {owner} run one of these, by what the role is for: {}",
                several.join("; ")
            ),
        })
    }

    /// The statement that makes the role a member of the part's role.
    fn membership(&self, part: Part) -> String {
        format!("GRANT \"{}\" TO \"{}\"", self.named(part), self.role)
    }

    fn usage(&self) -> String {
        let (owner, schema, role) = (&self.owner, &self.schema.0, &self.role);
        format!("have {owner} run: GRANT USAGE ON SCHEMA \"{schema}\" TO \"{role}\"")
    }

    fn may(&self, function: &str) -> bool {
        self.may.iter().any(|name| name == function)
    }

    fn named(&self, part: Part) -> String {
        format!("{}_{}", self.schema.0, part.name())
    }

    fn is_member(&self, part: Part) -> bool {
        self.member_of.contains(&self.named(part))
    }
}

impl Postgres {
    /// Reads the rights of the connected role.
    pub fn rights(&mut self) -> Result<Rights> {
        self.call("look at this role's rights", Rights::of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A role `app` with the rights of these parts, except the named functions.
    fn app(parts: &[Part], without: &[&str]) -> Rights {
        let all: Vec<&str> =
            Part::ALL.into_iter().flat_map(Part::functions).chain(["cancel_many"]).collect();
        let may = parts.iter().flat_map(|part| part.functions());
        Rights {
            role: "app".into(),
            owner: "boss".into(),
            is_usable: true,
            schema: ("tenure".into(), "tenure".into()),
            functions: all.iter().map(|name| (*name).to_owned()).collect(),
            may: may.filter(|name| !without.contains(name)).map(str::to_owned).collect(),
            ..Rights::default()
        }
    }

    #[test]
    fn the_functions_of_each_role_are_read_from_the_grants() {
        assert!(Part::Worker.functions().contains(&"settle_and_claim"));
        assert!(Part::Worker.own_functions().contains(&"claim_many"));
        assert!(Part::Enqueuer.functions().contains(&"enqueue_many"));
        assert!(!Part::Enqueuer.functions().contains(&"claim_many"));
        assert!(Part::Reader.own_functions().contains(&"page"));
    }

    #[test]
    fn a_role_is_for_what_it_has_rights_of_its_own_for() {
        assert_eq!(app(&[Part::Worker], &["claim_many"]).parts(), [Part::Worker]);
        assert_eq!(app(&[Part::Enqueuer], &[]).parts(), [Part::Enqueuer]);
        assert_eq!(
            app(&[Part::Enqueuer, Part::Reader], &[]).parts(),
            [Part::Enqueuer, Part::Reader]
        );
        assert_eq!(app(&[], &[]).parts(), []);
        let member = Rights { member_of: vec!["tenure_worker".into()], ..app(&[], &[]) };
        assert_eq!(member.parts(), [Part::Worker]);
        let both = vec!["tenure_enqueuer".into(), "tenure_reader".into()];
        let member = Rights { member_of: both, ..app(&[], &[]) };
        assert_eq!(member.parts(), [Part::Enqueuer, Part::Reader]);
    }

    #[test]
    fn a_function_that_the_schema_does_not_have_is_not_missing() {
        let mut older = app(&[Part::Worker], &["beat", "current_many"]);
        older.functions.retain(|name| name != "beat");
        assert_eq!(older.missing(Part::Worker), ["current_many"]);
    }

    #[test]
    fn there_is_no_advice_where_nothing_is_known_and_a_locked_schema_comes_first() {
        let refusal = "permission denied for function beat";
        let worker = app(&[Part::Worker], &["beat"]);
        assert!(worker.advice(refusal).unwrap().contains("GRANT EXECUTE"));
        let unknown = Rights { role: String::new(), ..worker.clone() };
        assert_eq!(unknown.advice(refusal), None);
        let empty = Rights { functions: vec![], is_usable: false, ..worker.clone() };
        assert_eq!(empty.advice(refusal), None);
        let shut_out = Rights { is_usable: false, ..worker };
        let said = shut_out.advice(refusal).unwrap();
        assert_eq!(said, "have boss run: GRANT USAGE ON SCHEMA \"tenure\" TO \"app\"");
    }

    #[test]
    fn what_is_missing_is_granted_in_one_statement() {
        let rights = app(&[Part::Worker], &["current_many", "beat"]);
        let grant = "GRANT EXECUTE ON FUNCTION tenure.beat, tenure.current_many TO \"app\"";
        let mut missing = rights.missing(Part::Worker);
        missing.sort_unstable();
        assert_eq!(missing, ["beat", "current_many"]);
        let said = rights.advice("keine Berechtigung für Funktion current_many").unwrap();
        assert!(said.starts_with("have boss run: GRANT EXECUTE ON FUNCTION tenure."), "{said}");
        assert_eq!(said.len(), "have boss run: ".len() + grant.len(), "{said}");
        // Members get the right through the part's role, and so do all its other members.
        let member = Rights { member_of: vec!["tenure_worker".into()], ..rights };
        assert!(member.grant(Part::Worker).ends_with(" TO \"tenure_worker\""));
    }

    #[test]
    fn what_a_role_is_not_for_is_told_by_the_role_that_is() {
        let told = |rights: &Rights, name| {
            rights.advice(&format!("permission denied for function {name}"))
        };
        let worker = Rights { roles: vec!["tenure_reader".into()], ..app(&[Part::Worker], &[]) };
        assert_eq!(
            told(&worker, "look_at").unwrap(),
            "have boss run: GRANT \"tenure_reader\" TO \"app\""
        );
        let alone = app(&[Part::Worker], &[]);
        let said = told(&alone, "look_at").unwrap();
        assert_eq!(said, "have boss run: GRANT EXECUTE ON FUNCTION tenure.look_at TO \"app\"");
        assert!(told(&worker, "cancel_many").unwrap().contains("only boss may"));
        let said = worker.advice("this role may not beat (permission denied for function look_at)");
        assert!(
            said.unwrap().contains("tenure_reader"),
            "what was being done is not what was refused"
        );
        assert_eq!(told(&worker, "something_of_yours"), None);
        let shut_out = Rights { is_usable: false, ..worker };
        let said = told(&shut_out, "look_at").unwrap();
        assert_eq!(said, "have boss run: GRANT \"tenure_reader\" TO \"app\"");
        let said = shut_out.advice("permission denied for schema tenure").unwrap();
        assert_eq!(said, "have boss run: GRANT USAGE ON SCHEMA \"tenure\" TO \"app\"");
    }

    #[test]
    fn what_several_roles_may_is_granted_by_what_the_role_is_for() {
        let roles = Part::ALL.map(|part| format!("tenure_{}", part.name())).to_vec();
        let nothing = Rights { roles, ..app(&[], &[]) };
        let said = nothing.advice("permission denied for function identity").unwrap();
        assert!(said.contains("by what the role is for"), "{said}");
        for part in ["worker", "enqueuer", "reader"] {
            assert!(said.contains(&format!("GRANT \"tenure_{part}\" TO \"app\"")), "{said}");
        }
    }
}
