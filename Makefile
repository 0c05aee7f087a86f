# SPDX-License-Identifier: MIT OR Apache-2.0
# The verbs. What they do is written in xtask/src/verbs.rs.

XTASK := cargo run --quiet --package xtask --

.PHONY: help demo test python ada lint loom miri fuzz mutants deny notices bench experiment experiment-posix experiment-budget stress hostile mutations kills kernels docs install naps ranges suites experiment-smco experiment-epos experiment-anomalies sizes clean

help:
	@echo 'make VERB, where VERB is one of:'
	@sed -n 's/^\([a-z-]*\): ## /\1	/p' Makefile | expand -t 8 | sed 's/^/  /'

demo: ## shows Overhear at work on two programs (at most 10 minutes from nothing)
	@$(XTASK) demo
test: ## builds once and runs every test and every lint
	@$(XTASK) test
python: ## builds the Python wheel, installs it in an environment of its own, and tests it
	@$(XTASK) python
ada: ## builds the Ada packages by gnatmake, and runs their tests and their example
	@$(XTASK) ada
lint: ## checks format, clippy, crate table, licence lines, links, citations, manifests, reference
	@$(XTASK) lint
loom: ## runs the models of the lock-free protocols in every interleaving, of the largest with up to 3 preemptions
	@$(XTASK) loom
miri: ## looks for undefined behaviour in the pure crates (needs a nightly toolchain)
	@$(XTASK) miri
fuzz: ## feeds arbitrary bytes to what parses, SECONDS=60 per target (needs a nightly toolchain)
	@$(XTASK) fuzz $(SECONDS)
mutants: ## plants each fault of xtask/mutants.json in a scratch copy, ONLY="WORD ..." some of them: the test named for it must fail
	@$(XTASK) mutants $(ONLY)
deny: ## checks licences, doubles, origins and known vulnerabilities of dependencies
	@$(XTASK) deny
notices: ## writes THIRD_PARTY_NOTICES.txt, the licences of what is linked
	@$(XTASK) notices
bench: ## measures sensors and readers against a floor and other tools, PAGE=FILE keeps the tables
	@$(XTASK) bench $(PAGE)
experiment: ## runs fifteen periodic tasks for SECONDS=60, and prints response times computed and observed
	@$(XTASK) experiment $(SECONDS)
experiment-posix: ## the same with metrics of POSIX trace streams alone, for SECONDS=60
	@$(XTASK) experiment-posix $(SECONDS)
experiment-budget: ## compares the CPU time of programs under a budget with its target, GROUPS=4 for each row; keeps docs/experiments/budget.md
	@$(XTASK) experiment-budget $(GROUPS)
stress: ## keeps a guarantee while every CPU is loaded, for SECONDS=600, assuming LATENESS=20 ms
	@$(XTASK) stress $(or $(SECONDS),600) $(LATENESS)
hostile: ## measures the directory under attack, then holds CONVERSATIONS=50000 broken talks and KILLS=1000 (as root)
	@$(XTASK) hostile $(or $(CONVERSATIONS),50000) $(or $(KILLS),1000)
mutations: ## reads COUNT=10000 changed recordings by every verb within 1 GiB and 15 s of CPU
	@$(XTASK) mutations $(COUNT)
kills: ## kills each recorder COUNT=1000 times beside a program that counts what it writes
	@$(XTASK) kills $(COUNT)
kernels: ## runs tests on Debian's kernels 6.1, 6.1-rt and 6.12 (x86-64) and 6.1 (arm64) in qemu, ONLY="KERNEL ..." some of them
	@$(XTASK) kernels $(ONLY)
naps: ## observes redis, sqlite, python, nginx and postgres by overhear naps under load, SECONDS=30 each, and measures its cost
	@$(XTASK) naps $(SECONDS)
docs: ## builds the documentation site and the reference of all crates
	@$(XTASK) docs
install: ## builds the release and installs it under PREFIX=/usr/local (programs, headers, libraries)
	@$(XTASK) install $(PREFIX)
ranges: ## builds the compilers overhear-clang and overhear-clang++ (needs llvm-19-dev)
	@$(XTASK) ranges
suites: ## runs the test suites of bzip2, zlib, lua and sqlite with the pass at -O0, -O2 and -O3, ONLY="PROJECT LEVEL ..." some of them
	@$(XTASK) suites $(ONLY)
experiment-smco: ## measures overhead and accuracy of integer ranges on bzip2 and grep in RUNS=10 runs, and writes docs/experiments/smco.md
	@$(XTASK) experiment-smco $(RUNS)
experiment-epos: ## compares sampling policies on the task set of EPOS, RUNS=10 of SECONDS=30, PARTITION=no shares its CPUs; keeps docs/experiments/epos.md
	@$(XTASK) experiment-epos $(or $(RUNS),10) $(or $(SECONDS),30) $(or $(PARTITION),yes)
experiment-anomalies: ## injects faults into the task set, RUNS=10 with SECONDS=8 before each, and shows what samples reveal; keeps docs/experiments/anomalies.md
	@$(XTASK) experiment-anomalies $(or $(RUNS),10) $(or $(SECONDS),8)
sizes: ## prints the sizes of the C libraries and of a static program with one sensor
	@$(XTASK) sizes
clean: ## removes everything built
	@$(XTASK) clean
