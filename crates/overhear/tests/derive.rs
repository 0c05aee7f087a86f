// SPDX-License-Identifier: MIT OR Apache-2.0
//! The output of `#[derive(Element)]`, in a crate that forbids unsafe code.

#![forbid(unsafe_code)]

use overhear::{Element, FieldKind, MAX_PAYLOAD_BYTES};

const NAME_BYTES: usize = 6;
type Cookies = u32;

#[derive(Element)]
#[element(type = "everything", crate = "overhear")]
#[repr(C)]
struct Everything {
    #[field(unit = "ns")]
    took: u64,
    delta: i64,
    #[field(unit = "%", name = "load")]
    r#type: f64,
    ratio: f32,
    cookies: Cookies,
    low: i32,
    port: u16,
    shift: i16,
    flag: u8,
    sign: i8,
    name: [u8; NAME_BYTES],
}

#[derive(Element)]
#[repr(C)]
struct PageFault;

#[derive(Element)]
#[repr(C)]
struct Largest {
    text: [u8; MAX_PAYLOAD_BYTES as usize],
}

fn everything() -> Everything {
    Everything {
        took: 1,
        delta: -2,
        r#type: 3.5,
        ratio: -4.25,
        cookies: 5,
        low: -6,
        port: 7,
        shift: -8,
        flag: 9,
        sign: -10,
        name: *b"eleven",
    }
}

#[test]
fn schema_has_every_field_in_order() {
    let schema = Everything::schema();
    assert_eq!(schema.id(), "everything");
    assert_eq!(schema.size() as usize, size_of::<Everything>());
    let fields = schema.fields().iter();
    let fields: Vec<_> = fields
        .map(|field| (&*field.name, field.kind, &*field.unit))
        .collect();
    let expected = [
        ("took", FieldKind::U64, "ns"),
        ("delta", FieldKind::I64, ""),
        ("load", FieldKind::F64, "%"),
        ("ratio", FieldKind::F32, ""),
        ("cookies", FieldKind::U32, ""),
        ("low", FieldKind::I32, ""),
        ("port", FieldKind::U16, ""),
        ("shift", FieldKind::I16, ""),
        ("flag", FieldKind::U8, ""),
        ("sign", FieldKind::I8, ""),
        ("name", FieldKind::Text(6), ""),
    ];
    assert_eq!(fields, expected);
}

#[test]
fn schema_reads_values_that_were_written() {
    let (schema, element) = (Everything::schema(), everything());
    let bytes = element.as_bytes();
    let values: Vec<_> = (0..11)
        .map(|index| schema.read(index, bytes).unwrap().to_string())
        .collect();
    assert_eq!(
        values,
        ["1", "-2", "3.5", "-4.25", "5", "-6", "7", "-8", "9", "-10", "eleven"]
    );
}

#[test]
fn empty_and_largest_element_are_accepted() {
    assert_eq!(PageFault::schema().id(), "page_fault");
    assert!(PageFault.as_bytes().is_empty());
    let largest = Largest {
        text: [7; MAX_PAYLOAD_BYTES as usize],
    };
    assert_eq!(largest.as_bytes().len(), 4088);
    assert_eq!(Largest::schema().size(), MAX_PAYLOAD_BYTES);
}
