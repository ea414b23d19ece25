//! Splits Rust sources into code, comments and strings, so that a search finds only code, or only text that
//! users read.

/// Kind of a part of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PartKind {
    Code,
    Comment,
    /// A string or a character, with its quotes.
    Literal,
}

/// `source` with spaces instead of everything that is not code. Line numbers do not change.
pub(super) fn code_of(source: &str) -> String {
    let mut code = String::with_capacity(source.len());
    for (part, text) in parts(source) {
        if part == PartKind::Code {
            code.push_str(text);
        } else {
            code.extend(text.chars().map(|it| if it == '\n' { '\n' } else { ' ' }));
        }
    }
    code
}

/// The parts of `source`, in order and without gaps.
pub(crate) fn parts(source: &str) -> impl Iterator<Item = (PartKind, &str)> {
    let mut rest = source;
    // Whether the part before ends in a letter: then `r` and `b` begin no string.
    let mut in_word = false;
    std::iter::from_fn(move || {
        let first = rest.chars().next()?;
        let (length, part) = match first {
            '/' if rest.starts_with("//") => {
                (rest.find('\n').unwrap_or(rest.len()), PartKind::Comment)
            }
            '/' if rest.starts_with("/*") => (block_comment(rest), PartKind::Comment),
            '"' => (string(rest), PartKind::Literal),
            'r' if !in_word => literal(raw_string(rest), 1),
            'b' | 'c' if !in_word && rest[1..].starts_with('r') => {
                literal(raw_string(&rest[1..]).map(|length| 1 + length), 1)
            }
            '\'' => literal(character(rest), 1),
            _ => (first.len_utf8(), PartKind::Code),
        };
        let (text, after) = rest.split_at(length);
        in_word = part == PartKind::Code && ends_in_word(text);
        rest = after;
        Some((part, text))
    })
}

/// A literal of `length`, or `code` bytes of code.
fn literal(length: Option<usize>, code: usize) -> (usize, PartKind) {
    length.map_or((code, PartKind::Code), |length| (length, PartKind::Literal))
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
    fn code_of_comments_and_strings_are_blank() {
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
    fn code_of_unclosed_part_ends_with_the_text() {
        for source in ["\"a", "/* a", "r#\"a", "'", "'\\", "a 'b"] {
            let _ = code_of(source);
        }
    }
}
