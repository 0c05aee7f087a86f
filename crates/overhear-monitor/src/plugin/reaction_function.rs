// SPDX-License-Identifier: MIT OR Apache-2.0
//! Functions of shared objects that carry out reactions.

use std::ffi::{CStr, CString};
use std::path::Path;

use super::abi::{RawReaction, React};
use super::library::{open_library, PluginError};
use crate::reaction::Decision;

/// The context of a call, besides the decision.
#[derive(Clone, Copy, Debug)]
pub struct ReactionContext<'a> {
    /// The reaction's name.
    pub name: &'a CStr,
    /// The update, sensor or constraint of the occurrence.
    pub of: &'a str,
    /// The occurrence, as a message.
    pub message: &'a str,
}

/// A function of a shared object, `void function(const oh_reaction *)`.
#[derive(Clone, Copy, Debug)]
pub struct ReactionFunction(React);

impl ReactionFunction {
    /// Loads a shared object, as [`Plugin::load`](super::Plugin::load) does, and finds the function
    /// in it. It need not be a plug-in otherwise.
    ///
    /// # Errors
    /// [`PluginError`] if it does not load or has no such function.
    pub fn load(path: &Path, function: &str) -> Result<Self, PluginError> {
        let file = path.display().to_string();
        let lacks = || PluginError::NoFunction {
            file: file.clone(),
            function: function.to_string(),
        };
        let symbol = CString::new(function).map_err(|_| lacks())?;
        let library = open_library(path)?;
        // SAFETY: update.h specifies the type of a function that a reaction names; the user named
        // it.
        let found = unsafe { library.get::<React>(symbol.to_bytes_with_nul()) };
        let found = found.map(|found| *found).map_err(|_| lacks())?;
        // It stays loaded until the process ends, like all plug-ins.
        std::mem::forget(library);
        Ok(Self(found))
    }

    /// Calls it, in this thread. It may take as long as it likes.
    pub fn call(&self, decision: &Decision, context: &ReactionContext<'_>) {
        let text = overhear_ffi::c_text;
        let (of, message) = (text(context.of), text(context.message));
        let occurrence = &decision.occurrence;
        let measure = occurrence.measure();
        let raw = RawReaction {
            size: size_of::<RawReaction>() as u32,
            on: occurrence.trigger() as u32,
            name: context.name.as_ptr(),
            of: of.as_ptr(),
            message: message.as_ptr(),
            at_ns: decision.at.as_monotonic_ns(),
            count: decision.count,
            element: occurrence.element().unwrap_or(u64::MAX),
            value: occurrence.value().unwrap_or(0),
            code: occurrence.code().unwrap_or(0),
            reserved: 0,
            observed: measure.observed.unwrap_or(f64::NAN),
            bound: measure.bound.unwrap_or(f64::NAN),
        };
        // SAFETY: a function of this type by `load`; all that is pointed to lives until it returns.
        unsafe { (self.0)(&raw const raw) };
    }
}
