// SPDX-License-Identifier: MIT OR Apache-2.0
//! The struct as the user has written it, checked as far as possible without types.

use proc_macro2::Span;
use syn::ext::IdentExt as _;
use syn::spanned::Spanned as _;
use syn::{Attribute, Data, DeriveInput, Error, Fields, Ident, LitStr, Path, Type};

/// The largest name and unit, in bytes, as `TypeSchema` has them.
const NAME_BYTES: usize = 64;
const UNIT_BYTES: usize = 32;

/// A struct that is an element if the types of its fields permit it.
pub(crate) struct Description {
    pub(crate) ident: Ident,
    pub(crate) type_id: String,
    /// Path of the crate `overhear`.
    pub(crate) overhear: Path,
    pub(crate) fields: Vec<FieldDescription>,
}

/// A field of the struct.
pub(crate) struct FieldDescription {
    pub(crate) ident: Ident,
    pub(crate) ty: Type,
    pub(crate) name: String,
    pub(crate) unit: String,
}

impl Description {
    /// Reads a struct; errors point at the token in question. All of them are collected.
    pub(crate) fn of(input: &DeriveInput) -> Result<Self, Error> {
        let Data::Struct(data) = &input.data else {
            return Err(Error::new_spanned(
                &input.ident,
                "an element is a struct: its bytes must mean the same whatever its value",
            ));
        };
        let mut errors = Errors::default();
        if !input.generics.params.is_empty() {
            errors.add(
                &input.generics,
                "an element has one layout, so it cannot be generic: \
                 write a struct for each, or implement `Element` by hand",
            );
        }
        errors.take(check_repr(input));
        let fields = match &data.fields {
            Fields::Named(fields) => fields.named.iter().collect(),
            Fields::Unit => Vec::new(),
            Fields::Unnamed(fields) => {
                errors.add(
                    fields,
                    "the fields of an element need names, by which tools show them",
                );
                Vec::new()
            }
        };
        let settings = errors.take(StructSettings::of(input)).unwrap_or_default();
        let type_id = settings
            .type_id
            .unwrap_or_else(|| (snake_case(&input.ident), input.ident.span()));
        errors.take(check_name(&type_id.0, type_id.1));
        let mut described: Vec<FieldDescription> = Vec::new();
        for field in fields {
            let Some(field) = errors.take(FieldDescription::of(field)) else {
                continue;
            };
            if described.iter().any(|other| other.name == field.name) {
                let message = format!("two fields are called `{}`", field.name);
                errors.add(&field.ident, &message);
            }
            described.push(field);
        }
        errors.finish()?;
        Ok(Self {
            ident: input.ident.clone(),
            type_id: type_id.0,
            overhear: settings
                .overhear
                .unwrap_or_else(|| syn::parse_quote!(::overhear)),
            fields: described,
        })
    }
}

impl FieldDescription {
    fn of(field: &syn::Field) -> Result<Self, Error> {
        let ident = field
            .ident
            .clone()
            .ok_or_else(|| Error::new(field.span(), "the field needs a name"))?;
        let (mut name, mut unit) = ((ident.unraw().to_string(), ident.span()), String::new());
        for attribute in named(&field.attrs, "field") {
            attribute.parse_nested_meta(|meta| {
                if meta.path.is_ident("unit") {
                    let text: LitStr = meta.value()?.parse()?;
                    unit = text.value();
                    let printable = !unit.chars().any(char::is_control);
                    if unit.len() > UNIT_BYTES || !printable {
                        let message = "a unit has at most 32 bytes and no control characters";
                        return Err(Error::new(text.span(), message));
                    }
                } else if meta.path.is_ident("name") {
                    let text: LitStr = meta.value()?.parse()?;
                    name = (text.value(), text.span());
                } else {
                    return Err(
                        meta.error("unknown; a field has `unit = \"...\"` and `name = \"...\"`")
                    );
                }
                Ok(())
            })?;
        }
        check_name(&name.0, name.1)?;
        Ok(Self {
            ident,
            ty: field.ty.clone(),
            name: name.0,
            unit,
        })
    }
}

/// `#[element(...)]`.
#[derive(Default)]
struct StructSettings {
    type_id: Option<(String, Span)>,
    overhear: Option<Path>,
}

impl StructSettings {
    fn of(input: &DeriveInput) -> Result<Self, Error> {
        let mut settings = Self::default();
        for attribute in named(&input.attrs, "element") {
            attribute.parse_nested_meta(|meta| {
                if meta.path.is_ident("type") {
                    let text: LitStr = meta.value()?.parse()?;
                    settings.type_id = Some((text.value(), text.span()));
                } else if meta.path.is_ident("crate") {
                    let text: LitStr = meta.value()?.parse()?;
                    settings.overhear = Some(text.parse_with(Path::parse_mod_style)?);
                } else {
                    return Err(meta
                        .error("unknown; an element has `type = \"...\"` and `crate = \"...\"`"));
                }
                Ok(())
            })?;
        }
        Ok(settings)
    }
}

fn named<'a>(attributes: &'a [Attribute], name: &'a str) -> impl Iterator<Item = &'a Attribute> {
    attributes
        .iter()
        .filter(move |attribute| attribute.path().is_ident(name))
}

/// The fields must be in memory in the written order, and aligned.
fn check_repr(input: &DeriveInput) -> Result<(), Error> {
    let mut is_c = false;
    for attribute in named(&input.attrs, "repr") {
        attribute.parse_nested_meta(|meta| {
            is_c |= meta.path.is_ident("C");
            if meta.path.is_ident("packed") {
                let message = "the fields of an element are aligned: \
                                remove `packed` and order them from large to small";
                return Err(meta.error(message));
            }
            if meta.input.peek(syn::token::Paren) {
                let content;
                syn::parenthesized!(content in meta.input);
                content.parse::<proc_macro2::TokenStream>()?;
            }
            Ok(())
        })?;
    }
    if is_c {
        Ok(())
    } else {
        let message = "the compiler may reorder the fields of this struct: add `#[repr(C)]`";
        Err(Error::new_spanned(&input.ident, message))
    }
}

fn check_name(name: &str, span: Span) -> Result<(), Error> {
    let first_is_good = name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_');
    let rest_is_good = name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    if first_is_good && rest_is_good && name.len() <= NAME_BYTES {
        return Ok(());
    }
    let message = format!(
        "`{name}` is not a valid name: use letters, digits and `_`, at most {NAME_BYTES}, \
         not a digit first"
    );
    Err(Error::new(span, message))
}

/// `QueueDepth` becomes `queue_depth`.
fn snake_case(ident: &Ident) -> String {
    let text = ident.unraw().to_string();
    let mut name = String::new();
    let mut before_is_lower = false;
    for letter in text.chars() {
        if letter.is_uppercase() && before_is_lower {
            name.push('_');
        }
        before_is_lower = letter.is_lowercase() || letter.is_ascii_digit();
        name.extend(letter.to_lowercase());
    }
    name
}

/// Errors so far, which are reported together.
#[derive(Default)]
struct Errors(Option<Error>);

impl Errors {
    fn push(&mut self, error: Error) {
        match &mut self.0 {
            Some(first) => first.combine(error),
            none => *none = Some(error),
        }
    }

    fn add(&mut self, tokens: impl quote::ToTokens, message: &str) {
        self.push(Error::new_spanned(tokens, message));
    }

    fn take<T>(&mut self, result: Result<T, Error>) -> Option<T> {
        result.map_err(|error| self.push(error)).ok()
    }

    fn finish(self) -> Result<(), Error> {
        self.0.map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::{snake_case, Description};
    use proc_macro2::Span;
    use syn::Ident;

    fn messages(text: &str) -> Vec<String> {
        match Description::of(&syn::parse_str(text).unwrap()) {
            Ok(_) => Vec::new(),
            Err(error) => error.into_iter().map(|error| error.to_string()).collect(),
        }
    }

    #[test]
    fn names_and_units_are_read() {
        let text = r#"
            #[repr(C, align(8))] #[element(type = "depth", crate = "other::place")]
            struct Queue { #[field(unit = "ns", name = "taken")] a: u64, r#type: u64 }"#;
        let description = Description::of(&syn::parse_str(text).unwrap()).unwrap();
        assert_eq!(description.type_id, "depth");
        assert_eq!(description.overhear.segments.len(), 2);
        let fields = description.fields.iter();
        let fields: Vec<_> = fields.map(|field| (&*field.name, &*field.unit)).collect();
        assert_eq!(fields, [("taken", "ns"), ("type", "")]);
    }

    #[test]
    fn type_id_comes_from_name() {
        for (name, id) in [
            ("QueueDepth", "queue_depth"),
            ("Turn", "turn"),
            ("Http2Frame", "http2_frame"),
        ] {
            assert_eq!(snake_case(&Ident::new(name, Span::call_site())), id);
        }
    }

    #[test]
    fn mistake_has_its_message() {
        let one = |text: &str, part: &str| {
            let found = messages(text);
            assert_eq!(found.len(), 1, "{text}: {found:?}");
            assert!(found[0].contains(part), "{text}: {found:?}");
        };
        one("struct A { a: u64 }", "add `#[repr(C)]`");
        one(
            "#[repr(transparent)] struct A { a: u64 }",
            "add `#[repr(C)]`",
        );
        one("#[repr(C, packed)] struct A { a: u64 }", "remove `packed`");
        one("#[repr(C)] struct A<T> { a: T }", "cannot be generic");
        one("#[repr(C)] struct A(u64);", "need names");
        one("#[repr(C)] enum A { B }", "is a struct");
        one("#[repr(C)] struct A { größe: u64 }", "not a valid name");
        let two = "#[repr(C)] struct A { a: u64, #[field(name = \"a\")] b: u64 }";
        one(two, "two fields are called `a`");
        let unit = "#[repr(C)] struct A { #[field(unit = \"a\\nb\")] a: u64 }";
        one(unit, "no control characters");
        one(
            "#[repr(C)] struct A { #[field(units = \"b\")] a: u64 }",
            "unknown",
        );
        one(
            "#[repr(C)] #[element(kind = \"b\")] struct A { a: u64 }",
            "unknown",
        );
        let id = "#[repr(C)] #[element(type = \"9\")] struct A { a: u64 }";
        one(id, "not a valid name");
        assert_eq!(messages("struct A<T> { a: T }").len(), 2);
    }
}
