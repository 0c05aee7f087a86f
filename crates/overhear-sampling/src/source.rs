// SPDX-License-Identifier: MIT OR Apache-2.0
//! Data sources: the interface of everything that can be sampled.

use overhear_event::SampleSchema;

/// What the values of a quantity mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuantityKind {
    /// A total that only grows; samples have its differences.
    Count,
    /// A value at the time of the sample, a signed integer.
    Level,
    /// A value at the time of the sample, a floating-point number.
    RealLevel,
}

/// What a read costs, in its order of magnitude.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CostClass {
    /// Tens of nanoseconds: an instruction, or memory that is mapped.
    Instruction,
    /// About a microsecond: a system call.
    SystemCall,
    /// Tens of microseconds: a file whose text the kernel forms.
    File,
}

/// A quantity of a data source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quantity {
    /// The name, a C identifier.
    pub name: String,
    /// The unit, empty for a plain number.
    pub unit: String,
    /// The meaning of its values.
    pub kind: QuantityKind,
}

impl Quantity {
    /// A quantity.
    #[must_use]
    pub fn new(name: impl Into<String>, unit: impl Into<String>, kind: QuantityKind) -> Self {
        Self {
            name: name.into(),
            unit: unit.into(),
            kind,
        }
    }

    /// Appends the quantity to the schema of a sampler.
    #[must_use]
    pub fn append_to(&self, schema: SampleSchema) -> SampleSchema {
        match self.kind {
            QuantityKind::Count => schema.count(&self.name, &self.unit),
            QuantityKind::Level => schema.level(&self.name, &self.unit),
            QuantityKind::RealLevel => schema.real_level(&self.name, &self.unit),
        }
    }
}

/// Why a data source could not be read.
#[derive(Debug, thiserror::Error)]
#[error("{source_name} cannot be read: {reason}")]
pub struct SourceReadError {
    /// The name of the source, as the user wrote it.
    pub source_name: String,
    /// What happened, and what to do.
    pub reason: String,
}

/// Something that can be sampled: the clerk of [EPOS, section III].
///
/// Everything is prepared when a source is built, so that [`Self::read`] allocates nothing and
/// costs the same each time.
pub trait DataSource: Send {
    /// The quantities, in the order in which they are read.
    fn quantities(&self) -> &[Quantity];

    /// What a read costs.
    fn cost(&self) -> CostClass;

    /// Whether its object has ended, such as a process, so that it will never be read again.
    fn has_ended(&self) -> bool {
        false
    }

    /// Reads all quantities into `values`, one word each: a count as its total, a level as the bits
    /// of an `i64`, a real level as those of an `f64`.
    ///
    /// # Errors
    /// [`SourceReadError`] if the source has gone, such as a thread that has ended.
    fn read(&mut self, values: &mut [u64]) -> Result<(), SourceReadError>;
}
