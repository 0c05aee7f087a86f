// SPDX-License-Identifier: MIT OR Apache-2.0
//! What an update has to tell.

/// One result.
#[derive(Clone, Debug, PartialEq)]
pub enum Told {
    /// A count, or a quantity that is never negative.
    Unsigned(u64),
    /// A quantity.
    Signed(i64),
    /// A quantity that is no whole number.
    Float(f64),
    /// A text.
    Text(String),
    /// A JSON document, as it was told: nobody has checked it.
    Json(String),
}

/// Results by their keys, in the order in which they were told.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Results(Vec<(String, Told)>);

impl Results {
    /// Tells a result. A key that was told before gets the new value.
    pub fn tell(&mut self, key: &str, told: impl Into<Told>) {
        let told = told.into();
        match self.0.iter_mut().find(|(known, _)| known == key) {
            Some((_, value)) => *value = told,
            None => self.0.push((key.to_string(), told)),
        }
    }

    /// Keys and values.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Told)> {
        self.0.iter().map(|(key, told)| (key.as_str(), told))
    }
}

impl From<u64> for Told {
    fn from(value: u64) -> Self {
        Self::Unsigned(value)
    }
}

impl From<i64> for Told {
    fn from(value: i64) -> Self {
        Self::Signed(value)
    }
}

impl From<f64> for Told {
    fn from(value: f64) -> Self {
        Self::Float(value)
    }
}

impl From<&str> for Told {
    fn from(value: &str) -> Self {
        Self::Text(value.to_string())
    }
}
