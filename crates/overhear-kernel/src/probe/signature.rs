// SPDX-License-Identifier: MIT OR Apache-2.0
//! Arguments and results of a function of the kernel, by the kernel's type information (BTF).
//!
//! For each tracepoint the kernel has a function that is called with its arguments
//! (`__bpf_trace_NAME`), and BTF describes that function. If several tracepoints share one class,
//! BTF has only the function of the class.

use std::fs;

use libbpf_rs::btf::types::{Enum, Enum64, Func, FuncProto, Int, IntEncoding, Typedef};
use libbpf_rs::btf::{Btf, BtfKind, BtfType, HasSize, ReferencesType, TypeId};
use overhear_event::{is_similar_name, FieldKind};

use super::point::{PointSource, PointValue, ValueKind};
use crate::machine;

/// Prefix of the function that is called with a tracepoint's arguments; the tracepoint's name
/// follows.
const OF_TRACEPOINT: &str = "__bpf_trace_";
/// Prefix of the type of such functions.
const TRACEPOINT_TYPE: &str = "btf_trace_";
/// Maximum number of words of arguments of a function (`MAX_POINT_ARGUMENTS`).
const MAX_ARGUMENTS: usize = 12;
const MAX_LISTED: usize = 8;

/// Why a function cannot be a sensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SignatureError {
    /// There is no such function; these have similar names.
    Missing(Vec<String>),
    /// The phrase after "because".
    NotTraceable(String),
    /// The kernel does not describe its types.
    NoTypes,
}

/// The kernel's types.
struct Types(Btf<'static>);

impl Types {
    fn read() -> Result<Self, SignatureError> {
        if !machine::has_type_information() {
            return Err(SignatureError::NoTypes);
        }
        let types = Btf::from_vmlinux().map_err(|error| {
            let why = format!("the kernel's type information cannot be read ({error})");
            SignatureError::NotTraceable(why)
        })?;
        Ok(Self(types))
    }

    fn prototype(&self, function: &str) -> Option<FuncProto<'_>> {
        let function = self.0.type_by_name::<Func<'_>>(function)?;
        FuncProto::try_from(function.referenced_type()).ok()
    }

    fn by_id(&self, id: TypeId) -> Option<BtfType<'_>> {
        let found: BtfType<'_> = self.0.type_by_id(id)?;
        Some(found.skip_mods_and_typedefs())
    }

    /// The kind of a value of a type, and the number of words that it takes as an argument; `None`
    /// if it cannot be a value.
    fn value(&self, id: TypeId) -> Option<(Shape, usize)> {
        let found = self.by_id(id)?;
        Some(match found.kind() {
            BtfKind::Int => {
                let int = Int::try_from(found).ok()?;
                let bytes = int.bits / 8;
                let is_signed = matches!(int.encoding, IntEncoding::Signed | IntEncoding::Char);
                (Shape::Number(number(bytes.into(), is_signed)?), 1)
            }
            BtfKind::Enum => {
                let kind = Enum::try_from(found).ok()?;
                (Shape::Number(number(kind.size(), kind.is_signed())?), 1)
            }
            BtfKind::Enum64 => {
                let kind = Enum64::try_from(found).ok()?;
                (Shape::Number(number(kind.size(), kind.is_signed())?), 1)
            }
            BtfKind::Ptr => match self.is_text(found) {
                true => (Shape::Text, 1),
                false => (Shape::Bits, 1),
            },
            BtfKind::Struct | BtfKind::Union => {
                let size = self.size(found)?;
                (Shape::Bits, size.div_ceil(8))
            }
            _ => return None,
        })
    }

    fn size(&self, found: BtfType<'_>) -> Option<usize> {
        let composite = libbpf_rs::btf::types::Composite::try_from(found).ok()?;
        Some(composite.size())
    }

    /// Whether a pointer points to `char`.
    fn is_text(&self, pointer: BtfType<'_>) -> bool {
        let target = pointer
            .next_type()
            .map(|target| target.skip_mods_and_typedefs());
        target.is_some_and(|target| {
            target.kind() == BtfKind::Int && target.name().is_some_and(|name| name == "char")
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Number(FieldKind),
    Bits,
    Text,
}

fn number(bytes: usize, is_signed: bool) -> Option<FieldKind> {
    Some(match (bytes, is_signed) {
        (1, false) => FieldKind::U8,
        (2, false) => FieldKind::U16,
        (4, false) => FieldKind::U32,
        (8, false) => FieldKind::U64,
        (1, true) => FieldKind::I8,
        (2, true) => FieldKind::I16,
        (4, true) => FieldKind::I32,
        (8, true) => FieldKind::I64,
        _ => return None,
    })
}

fn unfit(what: &str) -> SignatureError {
    SignatureError::NotTraceable(format!("{what} is of a type that no register holds"))
}

/// The arguments of a function, from the given one on, and the number of words that all arguments
/// take.
fn arguments(
    types: &Types,
    prototype: &FuncProto<'_>,
    from: usize,
) -> Result<(Vec<PointValue>, usize), SignatureError> {
    let (mut values, mut at) = (Vec::new(), 0);
    for (index, parameter) in prototype.iter().skip(from).enumerate() {
        let name = parameter.name.and_then(|name| name.to_str());
        let name = match name {
            Some(name) if !name.is_empty() => name.to_owned(),
            _ => format!("argument_{}", index + 1),
        };
        let Some((shape, words)) = types.value(parameter.ty) else {
            return Err(unfit(&format!("its argument {name}")));
        };
        for part in 0..words {
            let (source, kind) = match shape {
                Shape::Number(kind) => (PointSource::Argument, ValueKind::Number(kind)),
                Shape::Bits => (PointSource::Argument, ValueKind::Bits(FieldKind::U64)),
                Shape::Text => (PointSource::ArgumentPointed, ValueKind::Text(None)),
            };
            values.push(PointValue {
                name: match words {
                    1 => name.clone(),
                    _ => format!("{name}_{part}"),
                },
                source,
                from: (at + part) as u16,
                kind,
            });
        }
        at += words;
    }
    if at > MAX_ARGUMENTS {
        let why = format!("its arguments take {at} words, and at most {MAX_ARGUMENTS} can be read");
        return Err(SignatureError::NotTraceable(why));
    }
    Ok((values, at))
}

/// The arguments of a function.
pub(super) fn of_entry(function: &str) -> Result<Vec<PointValue>, SignatureError> {
    let types = Types::read()?;
    let prototype = traceable(&types, function)?;
    arguments(&types, &prototype, 0).map(|(values, _)| values)
}

/// The result of a function: one value, or none.
pub(super) fn of_return(function: &str) -> Result<Vec<PointValue>, SignatureError> {
    let types = Types::read()?;
    let prototype = traceable(&types, function)?;
    // The kernel's programs receive the arguments, too, so these must fit.
    arguments(&types, &prototype, 0)?;
    let id = prototype.referenced_type_id();
    if types
        .by_id(id)
        .is_none_or(|found| found.kind() == BtfKind::Void)
    {
        return Ok(Vec::new());
    }
    let (source, kind) = match types.value(id) {
        Some((Shape::Number(kind), _)) => (PointSource::Result, ValueKind::Number(kind)),
        Some((Shape::Bits, 1)) => (PointSource::Result, ValueKind::Bits(FieldKind::U64)),
        Some((Shape::Text, _)) => (PointSource::ResultPointed, ValueKind::Text(None)),
        _ => return Err(unfit("its result")),
    };
    Ok(vec![PointValue {
        name: "value".to_owned(),
        source,
        from: 0,
        kind,
    }])
}

/// The arguments of a tracepoint without an event, and the number of words that they take.
pub(super) fn of_tracepoint(name: &str) -> Result<(Vec<PointValue>, usize), SignatureError> {
    let types = Types::read()?;
    let has_it = |name: &str| {
        let name = format!("{TRACEPOINT_TYPE}{name}");
        types.0.type_by_name::<Typedef<'_>>(&name).is_some()
    };
    if !has_it(name) {
        let mut known: Vec<String> = types
            .0
            .type_by_kind::<Typedef<'_>>()
            .filter_map(|it| {
                Some(
                    it.name()?
                        .to_str()?
                        .strip_prefix(TRACEPOINT_TYPE)?
                        .to_owned(),
                )
            })
            .filter(|other| is_similar_name(other, name))
            .collect();
        known.sort_unstable();
        known.dedup();
        known.truncate(MAX_LISTED);
        return Err(SignatureError::Missing(known));
    }
    // The type has the same parameters without names.
    let named = types.prototype(&format!("{OF_TRACEPOINT}{name}"));
    let by_type = || {
        let typedef = types
            .0
            .type_by_name::<Typedef<'_>>(&format!("{TRACEPOINT_TYPE}{name}"))?;
        let pointer = typedef.referenced_type();
        FuncProto::try_from(pointer.next_type()?).ok()
    };
    let prototype = named.or_else(by_type);
    let prototype = prototype.ok_or_else(|| unfit("its description"))?;
    // The first argument belongs to the programs themselves.
    arguments(&types, &prototype, 1)
}

/// The prototype of a function that exists exactly once.
fn traceable<'a>(types: &'a Types, function: &str) -> Result<FuncProto<'a>, SignatureError> {
    let symbols = fs::read_to_string("/proc/kallsyms").unwrap_or_default();
    let found = look_up(&symbols, function);
    let prototype = types.prototype(function);
    match (found, prototype) {
        (
            SymbolMatch {
                times: 2..,
                ..
            },
            _,
        ) => Err(SignatureError::NotTraceable(format!(
            "the kernel has {} functions of this name, and a probe cannot select one of them",
            found_times(&symbols, function)
        ))),
        (SymbolMatch { module: Some(module), .. }, None) => Err(SignatureError::NotTraceable(format!(
            "it belongs to the module {module}, and only functions of the kernel itself are described"
        ))),
        (SymbolMatch { times: 1, .. }, Some(prototype)) => Ok(prototype),
        // If the kernel hides its symbols, its types must suffice.
        (SymbolMatch { times: 0, .. }, Some(prototype)) if symbols.is_empty() => Ok(prototype),
        (SymbolMatch { times: 1, .. }, None) => Err(SignatureError::NotTraceable(
            "the kernel does not describe what it takes: it is not written in C, or its compiler has changed that"
                .to_owned(),
        )),
        (SymbolMatch { similar, .. }, _) => match similar.iter().find(|it| is_made_of(it, function)) {
            Some(made) => Err(SignatureError::NotTraceable(format!(
                "its compiler has replaced it by {made}, with other arguments, or inlined it into its callers"
            ))),
            None => Err(SignatureError::Missing(similar)),
        },
    }
}

/// Whether `name` is a function that the compiler derived from `function`.
fn is_made_of(name: &str, function: &str) -> bool {
    let rest = name.strip_prefix(function);
    rest.is_some_and(|rest| rest.starts_with('.'))
}

/// The entries of a function in the kernel's list of symbols.
#[derive(Debug, PartialEq, Eq)]
struct SymbolMatch {
    times: usize,
    module: Option<String>,
    similar: Vec<String>,
}

/// The functions in a list of symbols: the name, and the module if it has one.
fn functions(symbols: &str) -> impl Iterator<Item = (&str, Option<&str>)> {
    symbols.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let (kind, name) = (words.nth(1)?, words.next()?);
        let module = words.next().map(|it| it.trim_matches(['[', ']']));
        matches!(kind, "t" | "T" | "w" | "W").then_some((name, module))
    })
}

fn found_times(symbols: &str, function: &str) -> usize {
    functions(symbols)
        .filter(|(name, _)| *name == function)
        .count()
}

fn look_up(symbols: &str, function: &str) -> SymbolMatch {
    let own = functions(symbols).find(|(name, _)| *name == function);
    let mut similar: Vec<String> = functions(symbols)
        .map(|(name, _)| name)
        .filter(|name| is_made_of(name, function) || is_near(name, function))
        .map(str::to_owned)
        .collect();
    // Functions that the compiler derived from this one come first.
    similar.sort_by_key(|name| (!is_made_of(name, function), name.len(), name.clone()));
    similar.dedup();
    similar.truncate(MAX_LISTED);
    SymbolMatch {
        times: found_times(symbols, function),
        module: own.and_then(|(_, module)| module).map(str::to_owned),
        similar,
    }
}

/// Whether two names are similar. The bound is strict, because the kernel has a hundred thousand
/// names.
fn is_near(name: &str, function: &str) -> bool {
    name.len().abs_diff(function.len()) <= 2 && is_similar_name(name, function)
}

#[cfg(test)]
mod tests {
    use super::{look_up, of_entry, of_return, of_tracepoint, SignatureError, SymbolMatch};
    use crate::machine;

    #[test]
    fn symbols_give_count_and_variants_of_a_function() {
        let symbols = "0000 T tcp_sendmsg\n0000 t show\n0000 t show\n0000 d tcp_prot\n\
                       0000 t nf_hook\t[nf_tables]\n0000 t helper.isra.0\n0000 T tcp_sendpage\n";
        let found = look_up(symbols, "tcp_sendmsg");
        assert_eq!((found.times, found.module), (1, None));
        assert_eq!(look_up(symbols, "show").times, 2);
        assert_eq!(look_up(symbols, "tcp_prot").times, 0);
        let found = look_up(symbols, "nf_hook");
        assert_eq!(found.module.as_deref(), Some("nf_tables"));
        let expected = SymbolMatch {
            times: 0,
            module: None,
            similar: vec!["helper.isra.0".to_owned()],
        };
        assert_eq!(look_up(symbols, "helper"), expected);
        assert_eq!(look_up(symbols, "tcp_sendmsgs").similar, ["tcp_sendmsg"]);
    }

    #[test]
    fn kernel_describes_functions_and_tracepoints() {
        if !machine::has_type_information() {
            return println!("skipped: this kernel does not describe its types");
        }
        let values = of_entry("vfs_read").unwrap();
        let names: Vec<&str> = values.iter().map(|value| value.name.as_str()).collect();
        assert_eq!(names, ["file", "buf", "count", "pos"]);
        assert_eq!(of_return("vfs_read").unwrap()[0].name, "value");
        assert!(of_return("wake_up_new_task").unwrap().is_empty());
        let (values, words) = of_tracepoint("sched_process_fork").unwrap();
        assert_eq!((values[1].name.as_str(), words), ("child", 2));
        let Err(SignatureError::Missing(similar)) = of_entry("vfs_raed") else {
            panic!("there is no such function");
        };
        assert!(similar.contains(&"vfs_read".to_owned()), "{similar:?}");
        let missing = of_tracepoint("sched_proces_fork").unwrap_err();
        assert_eq!(
            missing,
            SignatureError::Missing(vec!["sched_process_fork".to_owned()])
        );
    }
}
