//! Cutting a text into words as the patterns of widely used tokenizers do, without a regular expression's search.
//!
//! Tokens of a word depend on nothing but the word, so whoever has the words needs to know each one's tokens once. The
//! patterns known here are those of GPT-2, Llama 3 and Qwen 2 and everybody who took them over; character classes come
//! from the same tables the regular expressions use. Any other pattern is left to the tokenizer's own search.

use regex_syntax::hir::{Class, HirKind};
use serde_json::Value;

/// What a pattern makes of a text.
#[derive(Clone, Debug)]
pub(super) struct WordRules {
    pattern: Pattern,
    classes: Classes,
}

/// In what the patterns differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pattern {
    /// One mark or blank belongs to the letters behind it; in GPT-2's, only a space does. There, a space belongs to digits
    /// as well, contractions are small letters, and line ends are blanks like others.
    modern: bool,
    /// Digits in a word.
    digits: usize,
}

const LLAMA_3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN_2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT_2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

impl Pattern {
    /// Of a `pre_tokenizer`, when it is one of those known here and bytes are what it hands on.
    fn of(pre_tokenizer: &Value) -> Option<Self> {
        let bytes = |value: &Value, own_pattern: bool| {
            value["type"] == "ByteLevel"
                && value["add_prefix_space"] == false
                && value["use_regex"].as_bool().unwrap_or(true) == own_pattern
        };
        if bytes(pre_tokenizer, true) {
            return Some(Self { modern: false, digits: usize::MAX });
        }
        let steps = pre_tokenizer["pretokenizers"].as_array()?;
        let [split, then] = &steps[..] else { return None };
        let isolated =
            split["type"] == "Split" && split["behavior"] == "Isolated" && split["invert"] == false;
        if pre_tokenizer["type"] != "Sequence" || !isolated || !bytes(then, false) {
            return None;
        }
        match split["pattern"]["Regex"].as_str()? {
            LLAMA_3 => Some(Self { modern: true, digits: 3 }),
            QWEN_2 => Some(Self { modern: true, digits: 1 }),
            GPT_2 => Some(Self { modern: false, digits: usize::MAX }),
            _ => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Kind {
    Other,
    Letter,
    Digit,
    Blank,
}

/// Characters by kind: a table for the first 65,536, ranges for the rest.
#[derive(Clone, Debug)]
struct Classes {
    table: Box<[Kind]>,
    beyond: Vec<(u32, u32, Kind)>,
}

const TABLE: u32 = 1 << 16;

impl Classes {
    /// None if the tables are not what they have always been.
    fn new() -> Option<Self> {
        let mut table = vec![Kind::Other; TABLE as usize];
        let mut beyond = Vec::new();
        for (class, kind) in [(r"\p{L}", Kind::Letter), (r"\p{N}", Kind::Digit), (r"\s", Kind::Blank)] {
            let parsed = regex_syntax::parse(class).ok()?;
            let HirKind::Class(Class::Unicode(class)) = parsed.kind() else { return None };
            for range in class.ranges() {
                let (from, to) = (range.start() as u32, range.end() as u32);
                for at in from..=to.min(TABLE - 1) {
                    table[at as usize] = kind;
                }
                if to >= TABLE {
                    beyond.push((from.max(TABLE), to, kind));
                }
            }
        }
        beyond.sort_unstable_by_key(|(from, ..)| *from);
        Some(Self { table: table.into(), beyond })
    }

    fn of(&self, character: char) -> Kind {
        let at = character as u32;
        if at < TABLE {
            return self.table[at as usize];
        }
        let next = self.beyond.partition_point(|(from, ..)| *from <= at);
        match next.checked_sub(1).map(|before| self.beyond[before]) {
            Some((_, to, kind)) if at <= to => kind,
            _ => Kind::Other,
        }
    }
}

/// The character at a place and its length.
fn char_at(text: &str, at: usize) -> Option<(char, usize)> {
    let byte = *text.as_bytes().get(at)?;
    if byte < 0x80 {
        return Some((char::from(byte), 1));
    }
    let character = text[at..].chars().next()?;
    Some((character, character.len_utf8()))
}

impl WordRules {
    pub(super) fn of(pre_tokenizer: &Value) -> Option<Self> {
        Some(Self { pattern: Pattern::of(pre_tokenizer)?, classes: Classes::new()? })
    }

    /// The words of a text, one behind the other: together they are the text.
    pub(super) fn words<'t>(&'t self, text: &'t str) -> impl Iterator<Item = &'t str> + 't {
        let mut from = 0;
        std::iter::from_fn(move || {
            let to = self.end_of_word(text, from)?;
            Some(&text[std::mem::replace(&mut from, to)..to])
        })
    }

    fn kind_at(&self, text: &str, at: usize) -> Option<(Kind, usize)> {
        let (character, length) = char_at(text, at)?;
        Some((self.classes.of(character), length))
    }

    /// Behind the last of the characters of a kind from here on, no more than `most` of them.
    fn run(&self, text: &str, mut at: usize, kind: Kind, most: usize) -> usize {
        let mut count = 0;
        while count < most
            && let Some((found, length)) = self.kind_at(text, at)
            && found == kind
        {
            at += length;
            count += 1;
        }
        at
    }

    /// The pattern's alternatives, in its order.
    fn end_of_word(&self, text: &str, at: usize) -> Option<usize> {
        let Pattern { modern, digits } = self.pattern;
        let (character, length) = char_at(text, at)?;
        if character == '\''
            && let Some(end) = contraction(text, at, modern)
        {
            return Some(end);
        }
        let (kind, behind) = (self.classes.of(character), at + length);
        let next = || self.kind_at(text, behind).map(|(kind, _)| kind);
        let all = usize::MAX;
        let marks = |from: usize| {
            let end = self.run(text, from, Kind::Other, all);
            if modern { line_ends(text, end) } else { end }
        };
        Some(match kind {
            Kind::Letter => self.run(text, behind, Kind::Letter, all),
            Kind::Digit => self.run(text, behind, Kind::Digit, digits - 1),
            Kind::Other if modern && next() == Some(Kind::Letter) => {
                self.run(text, behind, Kind::Letter, all)
            }
            Kind::Other => marks(behind),
            Kind::Blank => match next() {
                Some(Kind::Letter) if character == ' ' || modern && !matches!(character, '\r' | '\n') => {
                    self.run(text, behind, Kind::Letter, all)
                }
                Some(Kind::Digit) if character == ' ' && !modern => self.run(text, behind, Kind::Digit, all),
                Some(Kind::Other) if character == ' ' => marks(behind),
                _ => self.blanks(text, at),
            },
        })
    }

    /// Blanks up to the last line end among them; else all, but for the one before a word.
    fn blanks(&self, text: &str, at: usize) -> usize {
        let end = self.run(text, at, Kind::Blank, usize::MAX);
        let blanks = &text[at..end];
        if self.pattern.modern
            && let Some(last) = blanks.rfind(['\r', '\n'])
        {
            return at + last + 1;
        }
        let before_last = blanks.char_indices().next_back().map_or(0, |(before_last, _)| before_last);
        if end == text.len() || before_last == 0 { end } else { at + before_last }
    }
}

fn line_ends(text: &str, at: usize) -> usize {
    at + text.as_bytes()[at..].iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count()
}

/// Behind `'s` and its like.
fn contraction(text: &str, at: usize, any_case: bool) -> Option<usize> {
    let rest = &text.as_bytes()[at + 1..];
    let letter = |n: usize| rest.get(n).map(|byte| if any_case { byte.to_ascii_lowercase() } else { *byte });
    let length = match (letter(0)?, letter(1)) {
        (b's' | b't' | b'm' | b'd', _) => 1,
        (b'r' | b'v', Some(b'e')) | (b'l', Some(b'l')) => 2,
        // The long s is an s in another case.
        _ if any_case && rest.starts_with("\u{17f}".as_bytes()) => 2,
        _ => return None,
    };
    Some(at + 1 + length)
}
