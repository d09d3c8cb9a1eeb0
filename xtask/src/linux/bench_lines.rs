//! Parses the output of `bench_works.sh`: a line `work NAME` for each work, followed by the line of the test module,
//! which consists of pairs of a word and a number.

use crate::failure::linux::Error;

/// The works, in order.
pub(super) const WORKS: [&str; 5] = ["pair-2k", "pair-64k", "datagram-64", "datagram-1400", "nvme-read-4k"];

/// The instructions of one work.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Taken {
    pub(super) work: &'static str,
    pub(super) instructions: u64,
    /// For a pair: those of the map and those of the unmap.
    pub(super) halves: Option<[u64; 2]>,
}

/// The instructions of each work.
pub(super) fn works(configuration: &'static str, lines: &[String]) -> Result<Vec<Taken>, Error> {
    WORKS.iter().map(|work| taken(work, lines).ok_or(Error::Unsaid { configuration, what: work })).collect()
}

/// Whether the walker of the IOMMU snoops the CPU caches.
pub(super) fn is_coherent(configuration: &'static str, lines: &[String]) -> Result<bool, Error> {
    /// A bit of VT-d's extended capability register.
    const C: u64 = 1;
    let value = lines.iter().find_map(|line| u64::from_str_radix(line.strip_prefix("ecap 0x")?, 16).ok());
    value.map(|value| value & C != 0).ok_or(Error::Unsaid { configuration, what: "what its IOMMU can do" })
}

fn taken(work: &'static str, lines: &[String]) -> Option<Taken> {
    let mut all = lines.iter().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let words = all.find(|words| words.starts_with(&["work", work]))?;
    let number = |word: &str| words.iter().skip_while(|other| **other != word).nth(1)?.parse().ok();
    if work.starts_with("pair-") {
        let halves = Some([number("map_ns")?, number("unmap_ns")?]);
        Some(Taken { work, instructions: number("pair_ns")?, halves })
    } else {
        Some(Taken { work, instructions: number("each_ns")?, halves: None })
    }
}

#[cfg(test)]
mod tests {
    use super::{Taken, is_coherent, works};

    const PRINTED: &str = "\
        ecap 0xf00f4a\n\
        work pair-2k [    5.1] portcullis_test: pairs 64 bytes 2048 batch 32 map_ns 3 unmap_ns 4 pair_ns 8\n\
        work pair-64k [    5.2] portcullis_test: pairs 64 bytes 65536 batch 1 map_ns 30 unmap_ns 40 pair_ns 70\n\
        work datagram-64 [    5.3] portcullis_test: datagrams 9 bytes 64 arrived 9 each_ns 500\n\
        work datagram-1400 [    5.4] portcullis_test: datagrams 9 bytes 1400 arrived 9 each_ns 600\n\
        work nvme-read-4k [    5.5] portcullis_test: reads 9 bytes 4096 each_ns 700\n";

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn every_work_is_read() {
        let taken = works("none", &lines(PRINTED)).expect("all are there");
        assert_eq!(taken[0], Taken { work: "pair-2k", instructions: 8, halves: Some([3, 4]) });
        assert_eq!(taken[4], Taken { work: "nvme-read-4k", instructions: 700, halves: None });
        assert_eq!(taken.iter().map(|taken| taken.instructions).collect::<Vec<_>>(), [8, 70, 500, 600, 700]);
        assert!(!is_coherent("linux-lazy", &lines(PRINTED)).expect("it is there"));
        assert!(is_coherent("linux-lazy", &lines("ecap 0xf00f4b")).expect("it is there"));
    }

    #[test]
    fn what_is_missing_or_has_no_number_is_named_with_its_configuration() {
        for (what, flaw) in
            [("datagram-64", "work datagram-64 "), ("nvme-read-4k", "each_ns 700"), ("pair-2k", "pair_ns 8")]
        {
            let error = works("linux-lazy", &lines(&PRINTED.replace(flaw, "else"))).expect_err(what);
            assert_eq!(error.to_string(), format!("the guest of `linux-lazy` says nothing of {what}"));
        }
        let error = is_coherent("linux-lazy", &lines("ecap")).expect_err("it is not there");
        assert_eq!(error.to_string(), "the guest of `linux-lazy` says nothing of what its IOMMU can do");
    }
}
