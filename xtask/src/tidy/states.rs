//! States in SQL carry their names: `state + 0 = 2 /* running */`. The names are those of the Rust
//! code that reads the numbers, so that a number cannot mean one thing here and another there.

/// The Rust file that says which number a state has.
pub(super) const NUMBERS: &str = "crates/tenure/src/store/row.rs";

/// The name and the number of each state of a job and of an effect.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Names(Vec<(String, String)>);

impl Names {
    /// The names that a Rust text gives: an arm such as `State::Running => 2,` names `2 /* running */`.
    pub(super) fn read(text: &str) -> Names {
        let arm = |line: &str| {
            let (pattern, number) = line.trim().strip_suffix(',')?.split_once(" => ")?;
            let variant =
                ["State::", "Standing::"].iter().find_map(|it| pattern.strip_prefix(it))?;
            let name = match variant {
                "Queued" => "ready".to_owned(),
                "Queued if waiting" => "waiting".to_owned(),
                other => other.to_lowercase(),
            };
            let is_number = !number.is_empty() && number.bytes().all(|c| c.is_ascii_digit());
            is_number.then(|| (name, number.to_owned()))
        };
        Names(text.lines().filter_map(arm).collect())
    }

    /// What is wrong with the states of a line of SQL.
    pub(super) fn check(&self, line: &str) -> Option<String> {
        let code = line.split_once("--").map_or(line, |(code, _)| code);
        code.match_indices("state").find_map(|(at, word)| {
            let is_word = !code[..at].ends_with(|c: char| c.is_alphanumeric());
            let rest = is_word.then(|| &code[at + word.len()..])?.strip_prefix(' ')?;
            let rest = rest.strip_prefix("+ 0 ").unwrap_or(rest);
            let (sign, rest) = rest.split_once(' ')?;
            match sign {
                "=" | "<>" | "<" | "<=" | ">" | ">=" | ":=" => self.check_number(sign, rest),
                "IN" => self.check_list(rest.strip_prefix('(')?.split_once(')')?.0),
                _ => None,
            }
        })
    }

    fn check_list(&self, list: &str) -> Option<String> {
        list.split(',').find_map(|item| self.check_number("=", item.trim()))
    }

    /// What is wrong with the number at the beginning of a text, if one is there.
    fn check_number(&self, sign: &str, text: &str) -> Option<String> {
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (number, rest) = text.split_at(digits);
        if number.is_empty() || rest.starts_with(|c: char| c.is_alphabetic() || c == '_') {
            return None;
        }
        let named = rest.strip_prefix(" /* ").and_then(|rest| rest.split_once(" */"));
        let Some((name, _)) = named else {
            return Some(format!(
                "`{number}`: write the state's name beside it, `2 /* running */`"
            ));
        };
        // `ended` is not a state: in `state >= 4 /* ended */` it stands for all states of the table
        // of ended jobs, of which 4 is the first.
        let is_bound = name == "ended" && number == "4" && ["<", ">="].contains(&sign);
        let is_known = self.0.iter().any(|(known, at)| known == name && at == number);
        let is_wrong = !is_known && !is_bound;
        is_wrong.then(|| format!("`{number} /* {name} */`: {NUMBERS} does not say so"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> Names {
        Names::read(
            "State::Queued if waiting => 1,\nState::Queued => 0,\nState::Running => 2,\nState::Succeeded => 4,\n\
             Standing::Open => 0,\n0 => (State::Queued, false),",
        )
    }

    #[test]
    fn a_number_has_the_name_that_the_code_gives_it() {
        for line in [
            "WHERE state = 2 /* running */ AND lane = 1",
            "j.state + 0 = 0 /* ready */",
            "l.state = 0 /* open */",
            "state IN (1 /* waiting */, 2 /* running */)",
            "state >= 4 /* ended */",
            "state := 0 /* ready */;",
            "state = :state",
            "state = 1st",
            "-- state = 2",
            "estate = 2",
        ] {
            assert_eq!(names().check(line), None, "{line}");
        }
    }

    #[test]
    fn a_bare_or_wrong_number_is_found() {
        for (line, says) in [
            ("WHERE state = 2 AND x", "write the state's name"),
            ("j.state + 0 <> 2", "write the state's name"),
            ("state IN (1 /* waiting */, 2)", "write the state's name"),
            ("state = 2 /* ready */", "does not say so"),
            ("state = 4 /* ended */", "does not say so"),
            ("p_state >= 4", "write the state's name"),
        ] {
            assert!(names().check(line).is_some_and(|found| found.contains(says)), "{line}");
        }
    }
}
