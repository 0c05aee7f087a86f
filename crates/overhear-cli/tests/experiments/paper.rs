// SPDX-License-Identifier: MIT OR Apache-2.0
//! Figures of [EPOS, tables II to VIII]. Rows of methods: baseline, execution flow, periodic, job.

/// Table II: memory in KB, without the baseline.
pub(crate) const MEMORY_KB: [f64; 3] = [984.4, 984.4, 39.7];

/// Table III: mean CPU time in us, and its standard deviation in per cent, by CPU and method.
pub(crate) const CPU_TIME: [[(f64, f64); 4]; 3] = [
    [
        (17_817_796.0, 0.4191),
        (17_683_931.0, 0.4333),
        (17_651_836.0, 0.4516),
        (17_609_303.0, 0.4568),
    ],
    [
        (23_682_966.0, 0.0035),
        (23_779_260.0, 0.2745),
        (23_711_761.0, 0.0538),
        (23_701_492.0, 0.2050),
    ],
    [
        (23_140_117.0, 0.0219),
        (23_169_998.0, 0.0708),
        (23_152_417.0, 0.0633),
        (23_111_943.0, 0.0677),
    ],
];

/// Seconds of a run.
pub(crate) const SECONDS: f64 = 30.0;

/// Table V: average impact on the idle time in per cent, without the baseline.
pub(crate) const IMPACT: [f64; 3] = [0.2870, 0.1248, -0.1540];

/// The impact of a method by its row of table III, in per cent: the mean over the CPUs of the lost
/// part of the idle time.
pub(crate) fn computed_impact(method: usize) -> f64 {
    let lost = CPU_TIME.iter().map(|cpu| {
        let idle = SECONDS * 1e6 - cpu[0].0;
        (cpu[method].0 - cpu[0].0) / idle * 100.0
    });
    lost.sum::<f64>() / CPU_TIME.len() as f64
}

/// Table VI: average execution time in us, and its standard deviation in per cent, by task and
/// method.
pub(crate) const EXECUTION_TIME: [[(f64, f64); 4]; 6] = [
    [
        (99_427.0, 0.1844),
        (96_857.0, 0.1564),
        (95_968.0, 1.3910),
        (98_498.0, 0.3648),
    ],
    [
        (198_498.0, 0.0937),
        (196_612.0, 0.0515),
        (196_390.0, 0.0750),
        (195_772.0, 0.0884),
    ],
    [
        (200_429.0, 0.0604),
        (201_184.0, 0.0564),
        (200_205.0, 0.3436),
        (201_037.0, 0.0692),
    ],
    [
        (194_292.0, 0.0011),
        (194_551.0, 0.0109),
        (194_489.0, 0.0246),
        (194_303.0, 0.0021),
    ],
    [
        (194_293.0, 0.0011),
        (194_596.0, 0.0111),
        (194_431.0, 0.0283),
        (194_307.0, 0.0020),
    ],
    [
        (194_561.0, 0.4191),
        (194_362.0, 0.4333),
        (194_843.0, 0.4516),
        (193_876.0, 0.4568),
    ],
];

/// Table VII: overhead in per cent by type of task (CPU, memory, mid-term), without the baseline.
pub(crate) const OVERHEAD_BY_TYPE: [[f64; 3]; 3] = [
    [0.1446, 0.0862, 0.0064],
    [-2.5848, -3.4789, -0.9344],
    [-0.2252, -0.3429, -0.4740],
];

/// Table VIII: latency and jitter in us, without the baseline.
pub(crate) const LATENCY: [(f64, f64); 3] = [(5.0, 1.9461), (6.0, 2.0924), (3.0, 2.1482)];

#[test]
fn figures_agree_with_each_other() {
    // Tables III to V agree for the first method only, which the page states.
    let computed = [1, 2, 3].map(computed_impact);
    for (computed, expected) in computed.into_iter().zip([IMPACT[0], -0.2424, -0.6096]) {
        assert!((computed - expected).abs() < 1e-3, "{computed} {expected}");
    }
    // Tables VI and VII, by type of task.
    for (types, row) in [&[3, 4][..], &[0], &[1, 2, 5]].iter().zip(OVERHEAD_BY_TYPE) {
        for (method, overhead) in (1..).zip(row) {
            let each = types.iter().map(|&task| {
                let times = EXECUTION_TIME[task];
                (times[method].0 / times[0].0 - 1.0) * 100.0
            });
            let computed = each.sum::<f64>() / types.len() as f64;
            assert!((computed - overhead).abs() < 5e-3, "{computed} {overhead}");
        }
    }
    // Table II by equations (1) and (2): seven clerks of 16 bytes, and accumulators of six tasks.
    let memory = |samples: f64, tasks: f64| (samples * 16.0 * 7.0 + 8.0 * 7.0 * tasks) / 1024.0;
    assert!((memory(9000.0, 0.0) - MEMORY_KB[0]).abs() < 0.1);
    assert!((memory(360.0, 6.0) - MEMORY_KB[2]).abs() < 0.1);
}
