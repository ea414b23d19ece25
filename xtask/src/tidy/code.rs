//! Splits Rust sources into code, comments and strings, so that a search finds only code, or only text that
//! users read.

use proc_macro2::{Span, TokenStream, TokenTree};

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

/// The parts of `source`, in order and without gaps. A source that is not Rust is one part of code: the check of
/// circles reports it.
pub(crate) fn parts(source: &str) -> Vec<(PartKind, &str)> {
    let mut parts = Parts { source, end: 0, found: Vec::new() };
    parts.add_all(source.parse().unwrap_or_default());
    parts.fill(source.len());
    if parts.found.is_empty() { vec![(PartKind::Code, source)] } else { parts.found }
}

/// The parts up to the byte `end`.
struct Parts<'a> {
    source: &'a str,
    end: usize,
    found: Vec<(PartKind, &'a str)>,
}

impl Parts<'_> {
    fn add_all(&mut self, tokens: TokenStream) {
        for token in tokens {
            match token {
                TokenTree::Group(group) => {
                    self.add(group.span_open(), PartKind::Code);
                    self.add_all(group.stream());
                    self.add(group.span_close(), PartKind::Code);
                }
                TokenTree::Literal(literal) => {
                    let is_number = literal.to_string().starts_with(|it: char| it.is_ascii_digit());
                    let kind = if is_number { PartKind::Code } else { PartKind::Literal };
                    self.add(literal.span(), kind);
                }
                TokenTree::Ident(_) | TokenTree::Punct(_) => self.add(token.span(), PartKind::Code),
            }
        }
    }

    /// Adds a token, and what lies before it. All tokens of a doc comment have the span of the comment.
    fn add(&mut self, span: Span, kind: PartKind) {
        let span = span.byte_range();
        if span.start >= self.end {
            self.fill(span.start);
            let text = &self.source[span.clone()];
            let is_comment = text.starts_with("//") || text.starts_with("/*");
            self.found.push((if is_comment { PartKind::Comment } else { kind }, text));
            self.end = span.end;
        }
    }

    /// Adds the white space and the comments before the byte `start`.
    fn fill(&mut self, start: usize) {
        let text = &self.source[self.end..start];
        if !text.is_empty() {
            let is_comment = !text.trim().is_empty();
            self.found.push((if is_comment { PartKind::Comment } else { PartKind::Code }, text));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_of_comments_and_strings_are_blank() {
        for (source, code) in [
            ("a // b\nc", "a     \nc"),
            ("a /* b /* c */ d */ e", "a                   e"),
            ("/// a\nb", "     \nb"),
            (r#"f("x\"y") g"#, "f(      ) g"),
            (r##"f(r#"a"b"#) g"##, "f(        ) g"),
            (r#"f(b"x", br"y")"#, "f(    ,      )"),
            ("'a' + '\\'' + '\\u{41}' + 1", "    +      +          + 1"),
            ("fn f<'a>(x: &'a str)", "fn f<'a>(x: &'a str)"),
            ("\"a\nb\" c", "  \n   c"),
            ("é \"é\" é", "é     é"),
        ] {
            assert_eq!(code_of(source).trim_end(), code.trim_end(), "{source}");
        }
    }
}
