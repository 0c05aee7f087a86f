// SPDX-License-Identifier: MIT OR Apache-2.0
//! Types that can be written as elements.

use overhear_event::{FieldKind, TypeSchema};

/// A type whose values can be written as elements: its bytes, and what they mean.
///
/// Derive it for a `#[repr(C)]` struct of numbers, texts (`[u8; N]`: UTF-8, ended by a zero byte
/// where it is shorter) or nothing at all (an event without payload):
///
/// ```
/// use overhear::Element;
///
/// #[derive(Element)]
/// #[element(type = "request")] // else the struct's name: `served_request`
/// #[repr(C)]
/// struct ServedRequest {
///     #[field(unit = "ns")]
///     took: u64,
///     #[field(name = "client_port")]
///     port: u32,
///     status: u16,
///     method: [u8; 10],
///     #[field(unit = "%")]
///     load: f64,
/// }
///
/// let schema = ServedRequest::schema();
/// assert_eq!(schema.id(), "request");
/// assert_eq!(schema.fields()[1].name, "client_port");
/// assert_eq!(schema.size(), 8 + 4 + 2 + 10 + 8);
/// ```
///
/// The derive refuses, at compile time and with the place, a struct with padding: the stack bytes
/// in it must not leak to monitors. Order fields from large to small, or name what is left
/// (`reserved: u32`). It also refuses structs without `repr(C)`, generic ones, and fields of other
/// types.
///
/// By hand, for types that the derive does not take, `as_bytes` is best left to a crate that proves
/// it, such as `zerocopy` (re-exported). A type that lies about its bytes does no harm to memory:
/// writing an element whose length is not that of the schema panics.
pub trait Element {
    /// Names, kinds and units of the fields, covering every byte of the element.
    fn schema() -> TypeSchema;

    /// The element's bytes. Their number is the size of the schema.
    fn as_bytes(&self) -> &[u8];
}

mod sealed {
    pub trait Sealed {}
}

/// A type that can be a field of an element.
///
/// That a type implements it proves that every byte of its values is initialised and means the same
/// in every process: no padding, no address, no interior mutability. The trait cannot be
/// implemented elsewhere, because [`derive@crate::Element`] relies on that.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a field of an element",
    label = "not a number or text of fixed size",
    note = "fields are u8 to u64, i8 to i64, f32, f64, and `[u8; N]` for text; \
            write a bool as u8, a usize as u64, an enum as its number"
)]
pub trait ElementField: sealed::Sealed {
    /// How the schema names it.
    const KIND: FieldKind;
}

macro_rules! fields {
    ($($ty:ty => $kind:ident),*) => {$(
        impl sealed::Sealed for $ty {}
        impl ElementField for $ty {
            const KIND: FieldKind = FieldKind::$kind;
        }
        const _: () = assert!(size_of::<$ty>() == FieldKind::$kind.size() as usize);
    )*};
}

fields!(
    u8 => U8, u16 => U16, u32 => U32, u64 => U64,
    i8 => I8, i16 => I16, i32 => I32, i64 => I64,
    f32 => F32, f64 => F64
);

impl<const BYTES: usize> sealed::Sealed for [u8; BYTES] {}
impl<const BYTES: usize> ElementField for [u8; BYTES] {
    const KIND: FieldKind = {
        assert!(
            BYTES > 0 && BYTES <= u16::MAX as usize,
            "a text has 1 to 65535 bytes"
        );
        FieldKind::Text(BYTES as u16)
    };
}

/// Functions for the code of the derive macro. They are not a stable interface.
#[doc(hidden)]
pub mod derive_support {
    /// The bytes of a value.
    ///
    /// # Safety
    /// Every byte of every value of `T` is initialised, and `T` has no interior mutability.
    #[inline(always)]
    #[must_use]
    pub const unsafe fn bytes_of<T>(value: &T) -> &[u8] {
        let start = std::ptr::from_ref(value).cast::<u8>();
        // SAFETY: the value is as long as its type, lives as long as the slice, is not changed
        // while it is borrowed, and has no byte that is not initialised, by the contract.
        unsafe { std::slice::from_raw_parts(start, size_of::<T>()) }
    }
}
