//! The accesses that got through, by rule, and whether the design declares them.

use super::owners::Breach;
use portcullis::mapper::Info;
use portcullis::{Protection, Rule};
use std::collections::BTreeMap;

const PS_PER_US: f64 = 1e6;

/// Accesses of the malicious device that broke one rule.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// The rule.
    pub rule: Rule,
    /// Whether the design declares that it breaks this rule under this protection, and kept the bound that it names.
    pub declared: bool,
    /// The number of such accesses. For S3 and S9, this includes addresses that must not have been handed out; for S4,
    /// walks into freed tables.
    pub accesses: u64,
    /// The longest time after a buffer's hand-back at which one of them reached it, in microseconds.
    pub window_us_max: Option<f64>,
    /// Bytes of these buffers, each times how long it was reached after its hand-back, summed, in byte-microseconds. A
    /// lower bound, because a device cannot try everything that is stale all the time.
    pub bytes_us: Option<f64>,
}

#[derive(Clone, Copy, Default)]
struct Sum {
    accesses: u64,
    window_ps_max: Option<u64>,
    bytes_ps: u128,
}

/// The accesses that got through.
pub(super) struct Findings {
    info: &'static Info,
    protection: Protection,
    /// How long after its hand-back a buffer may be reached, if that is declared; `None` if there is no bound.
    pub(super) bound_ps: Option<u64>,
    /// When the hardware began to refuse invalidations.
    pub(super) broken_since_ps: Option<u64>,
    found: BTreeMap<(Rule, bool), Sum>,
}

impl Findings {
    pub(super) fn new(info: &'static Info, protection: Protection, bound_ps: Option<u64>) -> Self {
        Self { info, protection, bound_ps, broken_since_ps: None, found: BTreeMap::new() }
    }

    /// Records an access that got through at `at_ps` and has exposed a buffer for `exposed_bytes_ps` more
    /// byte-picoseconds.
    pub(super) fn convict(&mut self, breach: &Breach, at_ps: u64, exposed_bytes_ps: u128) {
        let window_ps = breach.back_ps.map(|back_ps| at_ps.saturating_sub(back_ps));
        let sum = self.found.entry(self.charge(breach, window_ps)).or_default();
        sum.accesses += 1;
        sum.window_ps_max = sum.window_ps_max.max(window_ps);
        sum.bytes_ps += exposed_bytes_ps;
    }

    /// Records that the rule was broken `times` times, other than by reaching a page.
    pub(super) fn count(&mut self, rule: Rule, times: u64) {
        if times > 0 {
            self.found.entry((rule, self.info.breaks(self.protection, rule))).or_default().accesses += times;
        }
    }

    /// The breach under this protection. Without protection nothing is ever withdrawn from a device, so every breach
    /// is one of reach, without a hand-back.
    pub(super) fn as_protected(&self, breach: Breach) -> Breach {
        if self.protection == Protection::None { Breach { rule: Rule::Reach, back_ps: None } } else { breach }
    }

    /// The rule under which the breach counts, and whether it is declared.
    fn charge(&self, breach: &Breach, window_ps: Option<u64>) -> (Rule, bool) {
        let declares = |rule| self.info.breaks(self.protection, rule);
        match breach.rule {
            Rule::Strict => {
                let in_time = self.bound_ps.is_none_or(|bound_ps| window_ps.is_some_and(|window| window <= bound_ps));
                let declared = declares(Rule::Strict) && in_time;
                let broken = self.broken_since_ps.is_some_and(|since_ps| breach.back_ps >= Some(since_ps));
                // The hardware refused the invalidation, so the buffer must not have been handed back at all.
                if broken && !declared {
                    (Rule::Completion, declares(Rule::Completion))
                } else {
                    (Rule::Strict, declared)
                }
            }
            rule => (rule, declares(rule)),
        }
    }

    /// All findings, by rule.
    pub(super) fn by_rule(&self) -> Vec<Found> {
        let found = |(&(rule, declared), sum): (&(Rule, bool), &Sum)| Found {
            rule,
            declared,
            accesses: sum.accesses,
            window_us_max: sum.window_ps_max.map(|ps| ps as f64 / PS_PER_US),
            bytes_us: sum.window_ps_max.map(|_| sum.bytes_ps as f64 / PS_PER_US),
        };
        self.found.iter().map(found).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use portcullis_designs::DesignId;

    const BACK_PS: u64 = 1000;

    fn charged(design: DesignId, protection: Protection, rule: Rule, window_ps: u64) -> (Rule, bool) {
        let mut findings = Findings::new(design.info(), protection, Some(50));
        let breach = findings.as_protected(Breach { rule, back_ps: Some(BACK_PS) });
        findings.convict(&breach, BACK_PS + window_ps, 7_000_000);
        let found = findings.by_rule();
        let bytes_us = (protection != Protection::None).then_some(7.0);
        assert_eq!((found.len(), found[0].accesses, found[0].bytes_us), (1, 1, bytes_us));
        (found[0].rule, found[0].declared)
    }

    #[test]
    fn a_declared_window_is_declared_up_to_its_bound() {
        let deferred = |window_ps| charged(DesignId::Stock, Protection::Deferred, Rule::Strict, window_ps);
        assert_eq!((deferred(50), deferred(51)), ((Rule::Strict, true), (Rule::Strict, false)));
        assert_eq!(charged(DesignId::Stock, Protection::Strict, Rule::Strict, 0), (Rule::Strict, false));
        assert_eq!(charged(DesignId::Stock, Protection::Deferred, Rule::Reuse, 0), (Rule::Reuse, false));
    }

    #[test]
    fn without_protection_everything_is_reach() {
        for rule in [Rule::Strict, Rule::Rights, Rule::Reuse] {
            assert_eq!(charged(DesignId::Unprotected, Protection::None, rule, 900), (Rule::Reach, true));
        }
    }

    #[test]
    fn what_comes_back_from_broken_hardware_is_a_matter_of_completion() {
        let mut findings = Findings::new(DesignId::Stock.info(), Protection::Strict, Some(0));
        findings.broken_since_ps = Some(BACK_PS);
        for back_ps in [BACK_PS - 1, BACK_PS] {
            findings.convict(&Breach { rule: Rule::Strict, back_ps: Some(back_ps) }, BACK_PS, 0);
        }
        let rules: Vec<Rule> = findings.by_rule().iter().map(|found| found.rule).collect();
        assert_eq!(rules, [Rule::Strict, Rule::Completion]);
    }
}
