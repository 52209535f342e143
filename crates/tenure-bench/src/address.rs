//! Changes the address of a server, to name another database or a schema. The library finds the
//! schema in the parameter `schema` of the address. The driver does not know that parameter, so the
//! address for the driver is written without it.

/// The same server, with another database if one is named, and without a schema.
pub(crate) fn plain(url: &str, database: Option<&str>) -> String {
    let (base, query) = url.split_once('?').unwrap_or((url, ""));
    let host = base.find("://").map_or(0, |at| at + 3);
    let path = base[host..].find('/').map_or(base.len(), |at| host + at);
    let base = database.map_or_else(|| base.to_owned(), |it| format!("{}/{it}", &base[..path]));
    let kept = query.split('&').filter(|it| !it.is_empty() && !it.starts_with("schema="));
    let query = kept.collect::<Vec<_>>().join("&");
    if query.is_empty() { base } else { format!("{base}?{query}") }
}

/// The same database, in this schema.
pub(crate) fn in_schema(url: &str, schema: &str) -> String {
    let url = plain(url, None);
    let sign = if url.contains('?') { '&' } else { '?' };
    format!("{url}{sign}schema={schema}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_database_of_a_server_keeps_the_rest_of_its_address() {
        let url = "postgres://ann:x@db:5433/shop?schema=jobs&connect_timeout=5";
        assert_eq!(plain(url, None), "postgres://ann:x@db:5433/shop?connect_timeout=5");
        assert_eq!(plain(url, Some("b")), "postgres://ann:x@db:5433/b?connect_timeout=5");
        assert_eq!(plain("postgres://db", Some("b")), "postgres://db/b");
        assert_eq!(plain("postgres://me@%2Ftmp%2Fx/a", Some("b")), "postgres://me@%2Ftmp%2Fx/b");
    }

    #[test]
    fn a_schema_replaces_the_one_that_was_named() {
        assert_eq!(in_schema("postgres://db/shop?schema=jobs", "x"), "postgres://db/shop?schema=x");
        assert_eq!(in_schema("postgres://db/shop?a=b", "x"), "postgres://db/shop?a=b&schema=x");
    }
}
