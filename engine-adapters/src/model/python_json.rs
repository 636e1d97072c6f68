//! JSON as Python's `json.dumps` spells it, which is what chat templates were written against.

use serde::Serialize;
use serde_json::ser::{Formatter, Serializer};

/// `", "` and `": "` between items, as Python does on one line.
struct OneLine;

impl Formatter for OneLine {
    fn begin_array_value<W: ?Sized + std::io::Write>(
        &mut self,
        to: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        to.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_key<W: ?Sized + std::io::Write>(
        &mut self,
        to: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        to.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_value<W: ?Sized + std::io::Write>(&mut self, to: &mut W) -> std::io::Result<()> {
        to.write_all(b": ")
    }
}

/// Without an indent on one line, with one as a tree.
pub(super) fn dumps(value: &impl Serialize, indent: Option<usize>) -> Result<String, serde_json::Error> {
    let mut text = Vec::new();
    match indent {
        None => value.serialize(&mut Serializer::with_formatter(&mut text, OneLine))?,
        Some(indent) => {
            let spaces = " ".repeat(indent);
            let tree = serde_json::ser::PrettyFormatter::with_indent(spaces.as_bytes());
            value.serialize(&mut Serializer::with_formatter(&mut text, tree))?;
        }
    }
    Ok(String::from_utf8_lossy(&text).into_owned())
}
