//! Finds patterns of words in a text, whatever lies between the words: line breaks, quotes, hyphens.

/// How a text is read.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Word(String),
    /// Punctuation: no pattern goes across it.
    Break,
}

/// The words of a text, with the line of each.
#[derive(Debug)]
pub(super) struct Words(Vec<(usize, Token)>);

impl Words {
    pub(super) fn new(text: &str) -> Self {
        let mut words = Vec::new();
        // One is enough: where code was, there is one for each character.
        let add_break = |words: &mut Vec<_>, line| {
            if !matches!(words.last(), Some((_, Token::Break))) {
                words.push((line, Token::Break));
            }
        };
        for (index, line) in text.lines().enumerate() {
            let mut word = String::new();
            for character in line.chars().chain([' ']) {
                if character.is_alphanumeric() || (character == '\'' && !word.is_empty()) {
                    word.extend(character.to_lowercase());
                    continue;
                }
                if !word.is_empty() {
                    let found = std::mem::take(&mut word);
                    words.push((index + 1, Token::Word(found.trim_end_matches('\'').to_owned())));
                }
                if ".,;:!?()|".contains(character) {
                    add_break(&mut words, index + 1);
                }
            }
            if line.trim().is_empty() {
                add_break(&mut words, index + 1);
            }
        }
        Self(words)
    }

    /// The lines in which `pattern` begins, and the words found there.
    pub(super) fn find(&self, pattern: &str) -> Vec<(usize, String)> {
        let (not_after, pattern) = match pattern.strip_prefix('!') {
            Some(rest) => rest.split_once(' ').unwrap_or((rest, "")),
            None => ("", pattern),
        };
        let slots: Vec<&str> = pattern.split(' ').collect();
        let starts = 0..(self.0.len() + 1).saturating_sub(slots.len());
        let found = starts.filter_map(|at| {
            let tokens = &self.0[at..at + slots.len()];
            let before = at.checked_sub(1).map(|before| &self.0[before].1);
            if before.is_some_and(|before| !not_after.is_empty() && fits(not_after, before)) {
                return None;
            }
            let words = slots.iter().zip(tokens).map(|(slot, (_, token))| match token {
                Token::Word(word) if fits(slot, token) => Some(word.as_str()),
                Token::Word(_) | Token::Break => None,
            });
            let words = words.collect::<Option<Vec<_>>>()?;
            Some((tokens[0].0, words.join(" ")))
        });
        found.collect()
    }
}

/// Whether a word is one of those that `slot` names.
fn fits(slot: &str, token: &Token) -> bool {
    let Token::Word(word) = token else { return false };
    slot.split('|').any(|name| match name.strip_suffix('*') {
        Some(start) => word.starts_with(start),
        None => word == name,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(pattern: &str, text: &str) -> Vec<(usize, String)> {
        Words::new(text).find(pattern)
    }

    #[test]
    fn patterns_match_across_line_breaks_and_quotes() {
        let text = "a `30s`\nwould\n  Do; it would. Do not";
        assert_eq!(found("would do", text), [(2, "would do".to_owned())]);
        assert_eq!(found("left alone", "sluicegate_store_left_alone 1").len(), 1);
        assert_eq!(found("would do", "it would\n\ndo"), []);
    }

    #[test]
    fn patterns_have_alternatives_prefixes_and_exceptions() {
        assert_eq!(found("is|are away", "they are away")[0].1, "are away");
        assert_eq!(found("face|faces", "surface, faced").len(), 0);
        assert_eq!(found("of envoyproxy*", "of envoyproxy/ratelimit").len(), 1);
        let pattern = "!there is no text";
        assert_eq!(found(pattern, "there is no text, this is no text").len(), 1);
    }
}
