// SPDX-License-Identifier: MIT OR Apache-2.0
//! JSON documents of any shape, with a limit of memory.
//!
//! A tree of JSON values takes up to 80 times the bytes of its text: an object with one member has
//! a node with room for eleven. So the memory is counted while the tree grows, and parsing ends at
//! the limit.

use std::cell::Cell;
use std::fmt;
use std::mem::size_of;

use serde::de::{DeserializeSeed, Error, MapAccess, SeqAccess, Visitor};
use serde::Deserializer;
use serde_json::{Map, Number, Value};

/// Maximum memory of the tree of one document, in bytes.
pub(crate) const MAX_TREE_BYTES: usize = 96 << 20;

/// Size of a node of an object's members: eleven names and values, and links.
const NODE_BYTES: usize = 11 * (size_of::<String>() + size_of::<Value>()) + 32;
/// Every node has at least this many members, except the first one.
const LEAST_MEMBERS: usize = 5;

/// Parses a [`Value`] that takes no more than the remaining memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BoundedTree<'a> {
    left_bytes: &'a Cell<usize>,
}

impl<'a> BoundedTree<'a> {
    pub(crate) const fn new(left_bytes: &'a Cell<usize>) -> Self {
        Self { left_bytes }
    }

    fn take<E: Error>(self, bytes: usize) -> Result<(), E> {
        let left = self.left_bytes.get().checked_sub(bytes);
        self.left_bytes.set(left.ok_or_else(|| {
            E::custom(format_args!(
                "the document takes more than {} MiB of memory",
                MAX_TREE_BYTES >> 20
            ))
        })?);
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for BoundedTree<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for BoundedTree<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        self.take(value.len())?;
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Value, A::Error> {
        let mut all = Vec::new();
        while let Some(element) = elements.next_element_seed(self)? {
            let before = all.capacity();
            all.push(element);
            self.take((all.capacity() - before) * size_of::<Value>())?;
        }
        Ok(Value::Array(all))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut all = Map::new();
        while let Some(name) = members.next_key::<String>()? {
            if all.len().is_multiple_of(LEAST_MEMBERS) {
                self.take(NODE_BYTES)?;
            }
            self.take(name.capacity())?;
            let value = members.next_value_seed(self)?;
            all.insert(name, value);
        }
        Ok(Value::Object(all))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use serde::de::DeserializeSeed;
    use serde_json::Value;

    use super::{BoundedTree, MAX_TREE_BYTES};

    fn parse(text: &str, bytes: usize) -> Result<Value, serde_json::Error> {
        let left = Cell::new(bytes);
        BoundedTree::new(&left).deserialize(&mut serde_json::Deserializer::from_str(text))
    }

    #[test]
    fn trees_within_the_bound_are_those_of_the_usual_parser() {
        let text = r#"{"a": [1, -2, 2.5, null, true, "b\n\u00e9", 18446744073709551615, 1e400],
            "b": {"c": {}, "d": []}, "": "x", "a2": [[[]]]}"#
            .replace("1e400", "1e300");
        let expected: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(parse(&text, MAX_TREE_BYTES).unwrap(), expected);
        assert!(parse("[1, }", MAX_TREE_BYTES).is_err());
        assert!(parse(&"[".repeat(10_000), MAX_TREE_BYTES).is_err());
    }

    #[test]
    fn trees_end_at_the_bound() {
        for unit in [r#"{"a":0},"#, "0,", r#""","#, "[[]],", "\"0123456789\","] {
            let many = (1 << 20) / unit.len();
            let text = format!("[{}0]", unit.repeat(many));
            let error = parse(&text, text.len()).unwrap_err();
            assert!(error.to_string().contains("of memory"), "{unit}: {error}");
            assert!(parse(&text, 100 * text.len()).is_ok(), "{unit}");
        }
    }
}
