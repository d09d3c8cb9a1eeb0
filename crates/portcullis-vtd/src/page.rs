//! Pages that the unit reads or writes. Only this module touches the memory that the platform provides.

use portcullis::platform::Context;
use portcullis::table::{Frame, Walker};
use portcullis::{NoMemory, PhysAddr, Platform};

/// Proof that hardware no longer reads or writes our pages: it was seen with translation off, and with no queue or with
/// that of another driver.
#[derive(Debug)]
pub(crate) struct Stopped(());

impl Stopped {
    /// The unit's global status shows translation and our queue off. Hardware clears those bits only once its last
    /// access through them is over (§10.4.5).
    pub(crate) const fn seen() -> Self {
        Self(())
    }

    /// No register and no table has held the address yet.
    pub(crate) const fn never_told() -> Self {
        Self(())
    }
}

/// A page from the platform, zeroed when allocated. Empty once released.
///
/// Every method takes the platform that allocated the page; a [`Unit`](crate::Unit) has only one platform.
#[derive(Debug)]
pub(crate) struct Page(Option<PhysAddr>);

impl Page {
    /// No page.
    pub(crate) const fn none() -> Self {
        Self(None)
    }

    pub(crate) fn allocate<P: Platform>(walker: Walker<'_, P>) -> Result<Self, NoMemory> {
        walker.allocate_frame(Context::MaySleep).map(|phys| Self(Some(phys)))
    }

    /// Allocates all `N` pages, or none.
    pub(crate) fn allocate_all<const N: usize, P: Platform>(walker: Walker<'_, P>) -> Result<[Self; N], NoMemory> {
        let mut pages = [const { Self(None) }; N];
        for index in 0..N {
            match Self::allocate(walker) {
                Ok(page) => pages[index] = page,
                Err(NoMemory) => {
                    pages.iter_mut().for_each(|page| page.release(walker.platform(), &Stopped::never_told()));
                    return Err(NoMemory);
                }
            }
        }
        Ok(pages)
    }

    /// The physical address; zero once released.
    pub(crate) fn phys(&self) -> PhysAddr {
        self.0.unwrap_or_default()
    }

    /// The entries of the page.
    ///
    /// # Panics
    /// If the page was released.
    #[inline]
    pub(crate) fn entries<'a, P: Platform>(&'a self, platform: &'a P) -> &'a Frame {
        match self.0 {
            // SAFETY: the platform allocated the page, and `release`, which needs `&mut self`, has not given it back.
            Some(phys) => unsafe { platform.frame(phys) },
            None => unreachable!("a released page is used"),
        }
    }

    /// Gives the page back.
    pub(crate) fn release<P: Platform>(&mut self, platform: &P, _: &Stopped) {
        if let Some(phys) = self.0.take() {
            // SAFETY: `take` makes sure that the page is freed once. `entries` borrows `self`, so no reference is
            // left. The hardware has stopped.
            unsafe { platform.free_frame(phys) };
        }
    }
}
