// SPDX-License-Identifier: MIT OR Apache-2.0
//! Results of an update.

/// The value of a result.
#[derive(Clone, Debug, PartialEq)]
pub enum ResultValue {
    /// A count, or a quantity that is never negative.
    Unsigned(u64),
    /// A quantity.
    Signed(i64),
    /// A floating-point quantity.
    Float(f64),
    /// A text.
    Text(String),
    /// A JSON document, unchecked.
    Json(String),
}

/// Results by key, in the order in which they were added.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Results(Vec<(String, ResultValue)>);

impl Results {
    /// Sets a result. An existing key gets the new value.
    pub fn set(&mut self, key: &str, value: impl Into<ResultValue>) {
        let value = value.into();
        match self.0.iter_mut().find(|(known, _)| known == key) {
            Some((_, old)) => *old = value,
            None => self.0.push((key.to_string(), value)),
        }
    }

    /// Keys and values.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &ResultValue)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value))
    }
}

impl From<u64> for ResultValue {
    fn from(value: u64) -> Self {
        Self::Unsigned(value)
    }
}

impl From<i64> for ResultValue {
    fn from(value: i64) -> Self {
        Self::Signed(value)
    }
}

impl From<f64> for ResultValue {
    fn from(value: f64) -> Self {
        Self::Float(value)
    }
}

impl From<&str> for ResultValue {
    fn from(value: &str) -> Self {
        Self::Text(value.to_string())
    }
}
