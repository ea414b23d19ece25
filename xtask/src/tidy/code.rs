//! Rust's code without its comments and the contents of its strings, so that a plain search finds
//! only what is really code. Lines stay where they are.

/// `source` with blanks for everything that is no code.
pub(super) fn code_of(source: &str) -> String {
    let mut code = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(first) = rest.chars().next() {
        let (length, blank) = match first {
            '/' if rest.starts_with("//") => (rest.find('\n').unwrap_or(rest.len()), true),
            '/' if rest.starts_with("/*") => (block_comment(rest), true),
            '"' => (string(rest), true),
            'r' if !ends_in_word(&code) => match raw_string(rest) {
                Some(length) => (length, true),
                None => (1, false),
            },
            'b' | 'c' if !ends_in_word(&code) && rest[1..].starts_with('r') => {
                match raw_string(&rest[1..]) {
                    Some(length) => (1 + length, true),
                    None => (1, false),
                }
            }
            '\'' => match character(rest) {
                Some(length) => (length, true),
                None => (1, false),
            },
            _ => (first.len_utf8(), false),
        };
        let (part, after) = rest.split_at(length);
        if blank {
            code.extend(part.chars().map(|it| if it == '\n' { '\n' } else { ' ' }));
        } else {
            code.push_str(part);
        }
        rest = after;
    }
    code
}

fn ends_in_word(code: &str) -> bool {
    code.ends_with(|last: char| last.is_alphanumeric() || last == '_')
}

/// The length of the comment that `text` begins with; they nest.
fn block_comment(text: &str) -> usize {
    let mut depth = 0_usize;
    let mut at = 0;
    while at < text.len() {
        let rest = &text.as_bytes()[at..];
        if rest.starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if rest.starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    text.len()
}

/// The length of the string that `text` begins with.
fn string(text: &str) -> usize {
    let mut escaped = false;
    for (index, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return index + 1,
            _ => {}
        }
    }
    text.len()
}

/// The length of the raw string that `text` begins with, if it does.
fn raw_string(text: &str) -> Option<usize> {
    let hashes = text[1..].bytes().take_while(|byte| *byte == b'#').count();
    let body = text[1 + hashes..].strip_prefix('"')?;
    let close = format!("\"{}", "#".repeat(hashes));
    let end = body.find(&close).map_or(text.len(), |at| 2 + hashes + at + close.len());
    Some(end)
}

/// The length of the character that `text` begins with; `None` where it begins with a lifetime.
fn character(text: &str) -> Option<usize> {
    let inner = text[1..].chars().next()?;
    if inner == '\\' {
        let escape = 3 + text.get(3..)?.find('\'')?;
        return Some(escape + 1);
    }
    let end = 1 + inner.len_utf8();
    text[end..].starts_with('\'').then_some(end + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_strings_are_blanked() {
        for (source, code) in [
            ("a // b\nc", "a     \nc"),
            ("a /* b /* c */ d */ e", "a                   e"),
            (r#"f("x\"y") g"#, "f(      ) g"),
            (r##"f(r#"a"b"#) g"##, "f(        ) g"),
            (r#"f(b"x", br"y")"#, "f(b   ,      )"),
            ("'a' + '\\'' + '\\u{41}'", "    +      +         "),
            ("fn f<'a>(x: &'a str)", "fn f<'a>(x: &'a str)"),
            ("for_r\"x\"", "for_r   "),
            ("\"a\nb\"c", "  \n  c"),
        ] {
            assert_eq!(code_of(source).trim_end(), code.trim_end(), "{source}");
        }
    }

    #[test]
    fn what_is_never_closed_ends_with_the_text() {
        for source in ["\"a", "/* a", "r#\"a", "'", "'\\", "a 'b"] {
            let _ = code_of(source);
        }
    }
}
