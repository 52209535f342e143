//! Simple values of a return type, found by the name of the type. A function that returns one of
//! them at once is a mutant.

use syn::{GenericArgument, PathArguments, ReturnType, Type};

/// What a function may return at once instead of doing its work; none if its type is not a simple
/// one.
pub(crate) fn instead_of(output: &ReturnType) -> Vec<String> {
    match output {
        ReturnType::Default => vec![String::new()],
        ReturnType::Type(_, output) => values(output),
    }
}

fn values(of: &Type) -> Vec<String> {
    let one = |text: &str| vec![text.to_owned()];
    match of {
        Type::Tuple(tuple) if tuple.elems.is_empty() => one("()"),
        Type::Reference(reference) if reference.mutability.is_none() => match &*reference.elem {
            Type::Path(path) if path.path.is_ident("str") => one("\"\""),
            Type::Slice(_) => one("&[]"),
            _ => Vec::new(),
        },
        Type::Path(path) => {
            let Some(last) = path.path.segments.last() else { return Vec::new() };
            match last.ident.to_string().as_str() {
                "bool" => vec!["true".into(), "false".into()],
                "u8" | "u16" | "u32" | "u64" | "usize" | "i8" | "i16" | "i32" | "i64" | "isize" => {
                    vec!["0".into(), "1".into()]
                }
                "Option" => one("None"),
                "Vec" => one("Vec::new()"),
                "String" => one("String::new()"),
                "Duration" => one("std::time::Duration::ZERO"),
                "BTreeMap" | "BTreeSet" | "HashMap" | "HashSet" | "VecDeque" => {
                    one("Default::default()")
                }
                "Result" => {
                    let inner = first_argument(&last.arguments).map(values).unwrap_or_default();
                    inner.into_iter().map(|value| format!("Ok({value})")).collect()
                }
                _ => Vec::new(),
            }
        }
        _ => Vec::new(),
    }
}

fn first_argument(arguments: &PathArguments) -> Option<&Type> {
    let PathArguments::AngleBracketed(arguments) = arguments else { return None };
    arguments.args.iter().find_map(|argument| match argument {
        GenericArgument::Type(it) => Some(it),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(output: &str) -> Vec<String> {
        instead_of(&syn::parse_str(output).unwrap())
    }

    #[test]
    fn simple_types_have_simple_values() {
        assert_eq!(of(""), [""]);
        assert_eq!(of("-> bool"), ["true", "false"]);
        assert_eq!(of("-> rusqlite::Result<()>"), ["Ok(())"]);
        assert_eq!(of("-> Result<Option<Job>, Error>"), ["Ok(None)"]);
        assert_eq!(of("-> Result<Result<usize>>"), ["Ok(Ok(0))", "Ok(Ok(1))"]);
        assert_eq!(of("-> &'static str"), ["\"\""]);
        assert_eq!(of("-> Settled"), [""; 0]);
        assert_eq!(of("-> impl Iterator<Item = Job>"), [""; 0]);
    }
}
