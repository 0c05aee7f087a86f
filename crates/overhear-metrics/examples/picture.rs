// SPDX-License-Identifier: MIT OR Apache-2.0
//! Prints the picture of a built-in metric for Graphviz: `cargo run --example picture --
//! run_delay`.

use overhear_metrics::automaton::system_metric;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let name = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "time_slice".into());
    print!("{}", system_metric(&name)?.specification().to_graphviz());
    Ok(())
}
