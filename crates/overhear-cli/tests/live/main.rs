// SPDX-License-Identifier: MIT OR Apache-2.0
//! `overhear list`, `attach`, `top`, `enable` and `disable` against a running directory: that of
//! `overhear run --socket`, with the C program of the suite `sensors` under it; `overhear posix`.

mod attach;
mod budget;
mod hangups;
mod hostile;
#[path = "../behaviour/on_terminal.rs"]
mod on_terminal;
mod posix;
#[path = "../sensors/program.rs"]
#[allow(dead_code, reason = "the suite `sensors` uses the rest")]
mod program;
mod session;
#[path = "../behaviour/support.rs"]
mod support;
mod verbs;
