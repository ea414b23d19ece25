//! Directives of configuration files that have a format string: `log_format` of nginx, `LogFormat` and `CustomLog` of
//! Apache.

use std::borrow::Cow;

/// The format inside of a directive, or `text` if it is none; `None` for a directive without a format.
pub(super) fn format(text: &str) -> Option<Cow<'_, str>> {
    let start = text.trim_start_matches(is_between);
    let name = start.split(is_between).next().unwrap_or_default().to_ascii_lowercase();
    if !matches!(&*name, "log_format" | "logformat" | "customlog") {
        return Some(Cow::Borrowed(text));
    }
    let mut arguments = arguments(&start[name.len()..])?.into_iter();
    Some(Cow::Owned(match &*name {
        "logformat" => arguments.next()?,
        "customlog" => arguments.nth(1)?,
        _ => {
            let strings = arguments.skip(1).skip_while(|it| it.starts_with("escape="));
            Some(strings.collect::<String>()).filter(|format| !format.is_empty())?
        }
    }))
}

/// Whether a character separates arguments: a directive may be several lines, also ones that are commented out.
fn is_between(it: char) -> bool {
    it.is_whitespace() || it == '#'
}

/// The arguments up to the end of the text, or to a semicolon; `None` if a quote is not closed.
fn arguments(text: &str) -> Option<Vec<String>> {
    // Apache continues lines after a backslash.
    let text = text.replace("\\\r\n", "\n").replace("\\\n", "\n");
    let mut arguments = Vec::new();
    let mut rest = text.trim_start_matches(is_between);
    while let Some(first) = rest.chars().next().filter(|first| *first != ';') {
        let mut argument = String::new();
        let is_quoted = matches!(first, '"' | '\'');
        let mut characters = rest[usize::from(is_quoted)..].chars();
        loop {
            let before = characters.as_str();
            match characters.next() {
                Some(end) if is_quoted && end == first => break,
                None if is_quoted => return None,
                Some(';') | None if !is_quoted => {
                    characters = before.chars();
                    break;
                }
                Some(end) if !is_quoted && end.is_whitespace() => break,
                Some('\\') if before[1..].starts_with(['"', '\'', '\\']) => {
                    argument.extend(characters.next());
                }
                it => argument.extend(it),
            }
        }
        arguments.push(argument);
        rest = characters.as_str().trim_start_matches(is_between);
    }
    Some(arguments)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn format_of_directive_is_its_string() {
        for (text, expected) in [
            (r#"LogFormat "%h %l \"%r\" %>s" common"#, Some(r#"%h %l "%r" %>s"#)),
            (r#"  logformat '%h "%r"'"#, Some(r#"%h "%r""#)),
            ("LogFormat \\\n  \"%h\\t%r\" \\\n  tabs", Some("%h\\t%r")),
            ("LogFormat common", Some("common")),
            (r#"CustomLog "|/bin/rotate x" "%h \"%r\"" env=!quiet"#, Some(r#"%h "%r""#)),
            ("CustomLog ${APACHE_LOG_DIR}/access.log combined", Some("combined")),
            ("log_format main '$a [$b] \"$c\" '\n    '$d';", Some("$a [$b] \"$c\" $d")),
            ("#log_format main  '$a '\n    #     '$b';\n", Some("$a $b")),
            (
                "log_format j escape=json '{\"a\":\"$a\",' \"\\\"b\\\":$b}\";",
                Some("{\"a\":\"$a\",\"b\":$b}"),
            ),
            ("log_format main $a; # nothing", Some("$a")),
            ("log_format main '$a;$b'", Some("$a;$b")),
            // No directive.
            ("$log_format '$a'", Some("$log_format '$a'")),
            ("", Some("")),
            // Without a format.
            ("LogFormat", None),
            ("LogFormat \"%h", None),
            ("CustomLog logs/access.log", None),
            ("log_format main;", None),
            ("log_format main escape=json;", None),
            ("log_format main '$a\\'", None),
        ] {
            assert_eq!(format(text).as_deref(), expected, "{text}");
        }
    }
}
