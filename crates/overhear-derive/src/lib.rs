// SPDX-License-Identifier: MIT OR Apache-2.0
//! `#[derive(Element)]`: a struct goes in; out come its schema, its bytes, and the proofs that both
//! describe the same memory.
//!
//! The macro reads what is written (names, units, `repr`), and `describe` refuses
//! what it can see to be wrong. What only the compiler knows, the types of the fields and where
//! they lie, is proven by constants that the macro emits: they do not compile where a field is of
//! another kind than `overhear::ElementField` knows, or where a byte belongs to no field.
//!
//! Design constraint: users name nothing but `Element`. The emitted code needs neither `zerocopy`
//! nor an `unsafe` of the user's; it reads the struct's bytes through one function of `overhear`
//! whose contract the constants prove.
//!
//! The crate `overhear` re-exports the macro and shows it at work.

#![cfg_attr(not(test), warn(clippy::too_many_lines))]
#![forbid(unsafe_code)]

mod describe;
mod emit;

use proc_macro::TokenStream;

/// Makes a struct writable as an element: see `overhear::Element`.
///
/// On the struct: `#[repr(C)]`, required; `#[element(type = "depth")]`, the type id, else the
/// struct's name in lower case with `_` between words; `#[element(crate = "path::to::overhear")]`
/// where the crate is known under another path.
///
/// On a field: `#[field(unit = "ns")]` and `#[field(name = "taken")]`, else the field's own name
/// without unit.
#[proc_macro_derive(Element, attributes(element, field))]
pub fn derive_element(input: TokenStream) -> TokenStream {
    let input = syn::parse_macro_input!(input as syn::DeriveInput);
    match describe::Description::of(&input) {
        Ok(description) => emit::element(&description).into(),
        Err(error) => error.into_compile_error().into(),
    }
}
