//! A design whose map has a large frame and a growing list, and its twin without. The check must find the first, and
//! pass the second.

use super::{Hardware, Host};
use alloc::vec::Vec;
use core::hint::black_box;
use core::mem::MaybeUninit;
use portcullis::designs::Portcullis;
use portcullis::error::{CommitError, NewDomainError, RawMapError, RawUnmapError, UnmapError};
use portcullis::invalidation::Runs;
use portcullis::mapper::{Design, DesignInfo, DomainSetup, Info, Mapper, Usage};
use portcullis::proof::Committed;
use portcullis::{IovaRange, Request, Space};

/// The design `portcullis` with `WORDS` words on the stack of each map.
pub struct Behind<const WORDS: usize>;

/// With a page of words, and a list.
pub type Planted = Behind<512>;
/// With one word.
pub type Twin = Behind<1>;

/// The mapper of [`Behind`].
pub struct Forwarder<const WORDS: usize>(<Portcullis as Design<Host, Hardware>>::Mapper);

impl<const WORDS: usize> DesignInfo for Behind<WORDS> {
    const INFO: Info = Portcullis::INFO;
}

// SAFETY: everything that it does, `portcullis` does.
unsafe impl<const WORDS: usize> Design<Host, Hardware> for Behind<WORDS> {
    type Mapper = Forwarder<WORDS>;

    unsafe fn build_in<'t>(
        to: &'t mut MaybeUninit<Self::Mapper>,
        setup: DomainSetup<'_, Host, Hardware>,
    ) -> Result<&'t mut Self::Mapper, NewDomainError> {
        // SAFETY: the caller's promise, passed on.
        Ok(to.write(Forwarder(unsafe { Portcullis::build(setup) }?)))
    }
}

impl<const WORDS: usize> Forwarder<WORDS> {
    /// Maps with the words in its frame.
    #[inline(never)]
    fn map_behind_words(&self, request: &Request<'_>) -> Result<IovaRange, RawMapError> {
        let mut words = [0u64; WORDS];
        black_box(&mut words);
        let mut list = Vec::new();
        if WORDS > 1 {
            list.push(words[0]);
        }
        black_box(&list);
        // SAFETY: the promise of the caller of `map`, passed on.
        let mapped = unsafe { self.0.map(request) };
        black_box(&words);
        mapped
    }
}

// SAFETY: forwards to a mapper that keeps the promises.
unsafe impl<const WORDS: usize> Mapper for Forwarder<WORDS> {
    unsafe fn map(&self, request: &Request<'_>) -> Result<IovaRange, RawMapError> {
        self.map_behind_words(request)
    }

    fn unmap(&self, range: IovaRange, out: &mut Runs) -> Result<(), UnmapError> {
        self.0.unmap(range, out)
    }

    fn commit(&self, revocation: &mut Runs) -> Result<Committed, CommitError> {
        self.0.commit(revocation)
    }

    fn unmap_now(&self, range: IovaRange) -> Result<Committed, RawUnmapError> {
        self.0.unmap_now(range)
    }

    fn tick(&self) -> Result<(), CommitError> {
        self.0.tick()
    }

    fn due_us(&self) -> Option<u64> {
        self.0.due_us()
    }

    fn usage(&self) -> Usage {
        self.0.usage()
    }

    fn space(&self) -> &dyn Space {
        self.0.space()
    }
}
