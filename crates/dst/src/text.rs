//! The text of plans: words, separated by spaces. `text!` gives types a text.

use std::str::{FromStr, SplitWhitespace};

use anyhow::{Context as _, Result, bail};
use sluicegate_memory::WhenFull;

/// The words of a line that have not been read.
pub(crate) struct Words<'a>(SplitWhitespace<'a>);

impl<'a> Words<'a> {
    pub(crate) fn of(line: &'a str) -> Self {
        Self(line.split_whitespace())
    }

    /// The next word, which stays unread.
    pub(crate) fn peek(&self) -> Option<&'a str> {
        self.0.clone().next()
    }

    pub(crate) fn word(&mut self) -> Result<&'a str> {
        self.0.next().context("the line ends too early")
    }
}

/// A type that is written as words, and read from them.
pub(crate) trait Text: Sized {
    /// Appends the words, each after a space.
    fn write(&self, out: &mut String);

    fn read(words: &mut Words<'_>) -> Result<Self>;
}

/// Appends a word.
pub(crate) fn push(out: &mut String, word: &str) {
    out.push(' ');
    out.push_str(word);
}

/// The word for the name of a variant: `UsePolicy` is `use-policy`.
pub(crate) fn word_of(name: &str) -> String {
    let mut word = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() && !word.is_empty() {
            word.push('-');
        }
        word.extend(letter.to_lowercase());
    }
    word
}

/// Defines a type with a text: that of a variant is its name and its fields, that of a struct the names and values of its
/// fields. `units` are enums without fields, with a list of all.
macro_rules! text {
    ($(#[$meta:meta])* $vis:vis enum $name:ident {
        $($(#[$of:meta])* $variant:ident
            $(($($a:ident: $ta:ty),*))?
            $({ $($(#[$of_b:meta])* $b:ident: $tb:ty),* $(,)? })?,)*
    }) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        $vis enum $name {
            $($(#[$of])* $variant $(($($ta),*))? $({ $($(#[$of_b])* $b: $tb),* })?,)*
        }

        impl $crate::text::Text for $name {
            fn write(&self, out: &mut String) {
                match self {
                    $(Self::$variant $(($($a),*))? $({ $($b),* })? => {
                        $crate::text::push(out, &$crate::text::word_of(stringify!($variant)));
                        $($($crate::text::Text::write($a, out);)*)?
                        $($($crate::text::Text::write($b, out);)*)?
                    })*
                }
            }

            fn read(words: &mut $crate::text::Words<'_>) -> anyhow::Result<Self> {
                let word = words.word()?;
                $(if word == $crate::text::word_of(stringify!($variant)) {
                    return Ok(Self::$variant
                        $(($(<$ta as $crate::text::Text>::read(words)?),*))?
                        $({ $($b: $crate::text::Text::read(words)?),* })?);
                })*
                let all = [$($crate::text::word_of(stringify!($variant))),*];
                anyhow::bail!("invalid `{word}`: expected {}", all.join(", "))
            }
        }
    };
    ($(#[$meta:meta])* $vis:vis units $name:ident {
        $($(#[$of:meta])* $variant:ident,)*
    }) => {
        text! {
            $(#[$meta])*
            #[derive(Copy)]
            $vis enum $name { $($(#[$of])* $variant,)* }
        }

        impl $name {
            /// All of them.
            $vis const ALL: &[Self] = &[$(Self::$variant),*];
        }
    };
    ($(#[$meta:meta])* $vis:vis struct $name:ident {
        $($(#[$of:meta])* $field:ident: $type:ty,)*
    }) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        $vis struct $name {
            $($(#[$of])* $vis $field: $type,)*
        }

        impl $crate::text::Text for $name {
            fn write(&self, out: &mut String) {
                $($crate::text::push(out, stringify!($field));
                $crate::text::Text::write(&self.$field, out);)*
            }

            fn read(words: &mut $crate::text::Words<'_>) -> anyhow::Result<Self> {
                Ok(Self {
                    $($field: {
                        let word = words.word()?;
                        let expected = stringify!($field);
                        anyhow::ensure!(word == expected, "invalid `{word}`: expected `{expected}`");
                        $crate::text::Text::read(words)?
                    },)*
                })
            }
        }
    };
}
pub(crate) use text;

macro_rules! numbers {
    ($($type:ty),*) => {
        $(impl Text for $type {
            fn write(&self, out: &mut String) {
                push(out, &self.to_string());
            }

            fn read(words: &mut Words<'_>) -> Result<Self> {
                number(words.word()?)
            }
        })*
    };
}
numbers!(u32, u64, usize, i64);

/// The number that a word is.
pub(crate) fn number<T: FromStr>(word: &str) -> Result<T> {
    word.parse().ok().with_context(|| format!("invalid number `{word}`"))
}

impl Text for bool {
    fn write(&self, out: &mut String) {
        push(out, if *self { "yes" } else { "no" });
    }

    fn read(words: &mut Words<'_>) -> Result<Self> {
        match words.word()? {
            "yes" => Ok(true),
            "no" => Ok(false),
            other => bail!("invalid `{other}`: expected `yes` or `no`"),
        }
    }
}

impl Text for WhenFull {
    fn write(&self, out: &mut String) {
        push(out, if *self == Self::Deny { "deny" } else { "allow" });
    }

    fn read(words: &mut Words<'_>) -> Result<Self> {
        match words.word()? {
            "deny" => Ok(Self::Deny),
            "allow" => Ok(Self::Allow),
            other => bail!("invalid `{other}`: expected `deny` or `allow`"),
        }
    }
}

/// `-` stands for none.
impl<T: Text> Text for Option<T> {
    fn write(&self, out: &mut String) {
        match self {
            Some(it) => it.write(out),
            None => push(out, "-"),
        }
    }

    fn read(words: &mut Words<'_>) -> Result<Self> {
        if words.peek() == Some("-") {
            return words.word().map(|_| None);
        }
        T::read(words).map(Some)
    }
}

impl<A: Text, B: Text> Text for (A, B) {
    fn write(&self, out: &mut String) {
        self.0.write(out);
        self.1.write(out);
    }

    fn read(words: &mut Words<'_>) -> Result<Self> {
        Ok((A::read(words)?, B::read(words)?))
    }
}

/// To the end of the line.
impl<T: Text> Text for Vec<T> {
    fn write(&self, out: &mut String) {
        self.iter().for_each(|it| it.write(out));
    }

    fn read(words: &mut Words<'_>) -> Result<Self> {
        let mut all = Self::new();
        while words.peek().is_some() {
            all.push(T::read(words)?);
        }
        Ok(all)
    }
}
