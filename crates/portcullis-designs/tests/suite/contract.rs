//! Programs that must not compile, each with the expected error: nothing goes back without a proof, a proof comes only
//! from the hardware's answer or from a named reason, and everything that could let a device through is unsafe to
//! implement or to call.

use crate::compile_fail::{Case, check};

const CASES: &[Case] = &[
    Case {
        name: "an address is freed without a proof",
        program: "pub fn free<P: Platform, A: IovaAllocator<P>>(allocator: &A, host: &P, range: IovaRange, proof: &Proof) {
            let _ = proof;
            @
        }",
        wrong: "allocator.free(host, range);",
        right: "allocator.free(host, range, proof);",
        code: "E0061",
        says: "argument #3 of type `&Proof`",
    },
    Case {
        name: "a proof is made of nothing",
        program: "pub fn make(proof: Proof) -> Proof { @ }",
        wrong: "let _ = proof; Proof(())",
        right: "proof",
        code: "E0423",
        says: "private field",
    },
    Case {
        name: "a proof is copied",
        program: "pub fn twice(proof: Proof) -> (Proof, Option<Proof>) { @ }",
        wrong: "(proof, Some(proof))",
        right: "(proof, None)",
        code: "E0382",
        says: "use of moved value: `proof`",
    },
    Case {
        name: "a reason is claimed from outside",
        program: "pub fn claim(proof: Proof) -> Proof { @ }",
        wrong: "let _ = proof; Proof::never_visible()",
        right: "proof",
        code: "E0624",
        says: "associated function `never_visible` is private",
    },
    Case {
        name: "a trusted proof needs no promise",
        program: "pub fn claim() -> Proof { @ }",
        wrong: "Proof::trusted()",
        right: "unsafe { Proof::trusted() }",
        code: "E0133",
        says: "trusted` is unsafe and requires",
    },
    Case {
        name: "a commit says without a proof that the device has lost the buffers",
        program: "pub fn commit(proof: Proof) -> Committed { @ }",
        wrong: "let _ = proof; Committed::Proven(())",
        right: "Committed::Proven(proof)",
        code: "E0308",
        says: "expected `Proof`, found `()`",
    },
    Case {
        name: "a submitted invalidation is taken for a proof before it is done",
        program: "pub fn told<I: Iommu>(iommu: &I, space: &AddressSpace<impl Platform, I>) -> Result<Proof, QueueError> {
            let _ = iommu;
            @
        }",
        wrong: "iommu.submit(&[])",
        right: "space.invalidate(&[])",
        code: "E0308",
        says: "mismatched types",
    },
    Case {
        name: "table pages go back without their domain",
        program: "pub fn release<P: Platform, I: Iommu>(space: &AddressSpace<P, I>, pages: FreedTables, proof: &Proof) {
            let _ = (space, proof);
            @
        }",
        wrong: "space.release(pages, proof);",
        right: "drop(pages);",
        code: "E0624",
        says: "method `release` is private",
    },
    Case {
        name: "a buffer is taken out of its mapping",
        program: "pub fn take<B: DmaBuffer>(mapping: Mapping<B>) -> Option<B> { @ }",
        wrong: "mapping.into_lent().give_back()",
        right: "drop(mapping); None",
        code: "E0624",
        says: "method `into_lent` is private",
    },
    Case {
        name: "a buffer is used while it is mapped",
        program: "pub fn keep<M: Mapper + ?Sized, B: DmaBuffer>(domain: &Domain<M>, buffer: B) -> usize {
            let mapped = domain.map(buffer, Access::DeviceReads);
            @
        }",
        wrong: "let _ = mapped; buffer.segments().len()",
        right: "mapped.map_or(0, |mapping| mapping.range().pages() as usize)",
        code: "E0382",
        says: "borrow of moved value: `buffer`",
    },
    Case {
        name: "memory is mapped through the raw interface without a promise",
        program: "pub fn map<M: Mapper + ?Sized>(domain: &Domain<M>, page: PhysAddr) -> Result<Iova, RawMapError> {
            @
        }",
        wrong: "domain.map_raw(page, PAGE_SIZE, Access::DeviceWrites)",
        right: "unsafe { domain.map_raw(page, PAGE_SIZE, Access::DeviceWrites) }",
        code: "E0133",
        says: "map_raw` is unsafe and requires",
    },
    Case {
        name: "a request is mapped without a promise",
        program: "pub fn map<M: Mapper + ?Sized>(domain: &Domain<M>, request: &Request<'_>) -> Result<IovaRange, RawMapError> {
            @
        }",
        wrong: "domain.map_request(request)",
        right: "unsafe { domain.map_request(request) }",
        code: "E0133",
        says: "map_request` is unsafe and requires",
    },
    Case {
        name: "a mapper maps without a promise",
        program: "pub fn map(mapper: &dyn Mapper, request: &Request<'_>) -> Result<IovaRange, RawMapError> { @ }",
        wrong: "mapper.map(request)",
        right: "unsafe { mapper.map(request) }",
        code: "E0133",
        says: "map` is unsafe and requires",
    },
    Case {
        name: "a second id is opened over a table",
        program: "pub fn alias(iommu: &impl Iommu, root: PhysAddr) -> Result<DomainId, AttachError> { @ }",
        wrong: "iommu.open_domain(Translation::Tables { root, levels: 4 })",
        right: "unsafe { iommu.open_domain(Translation::Tables { root, levels: 4 }) }",
        code: "E0133",
        says: "open_domain` is unsafe and requires",
    },
    Case {
        name: "a domain is closed without a promise",
        program: "pub fn close(iommu: &impl Iommu, id: DomainId) -> Result<(), AttachError> { @ }",
        wrong: "iommu.close_domain(id)",
        right: "unsafe { iommu.close_domain(id) }",
        code: "E0133",
        says: "close_domain` is unsafe and requires",
    },
    Case {
        name: "a device is let through to all memory",
        program: "pub fn open<P: Platform, I: Iommu>(iommu: I, host: P, config: &DomainConfig<'_>) -> Result<DomainOf<Unprotected, P, I>, NewDomainError> {
            @
        }",
        wrong: "Unprotected::open_unprotected(iommu, host, config)",
        right: "unsafe { Unprotected::open_unprotected(iommu, host, config) }",
        code: "E0133",
        says: "unprotected` is unsafe and requires",
    },
    Case {
        name: "a mapper is built past the checks of a domain",
        program: "pub fn build<P: Platform, I: Iommu>(setup: DomainSetup<'_, P, I>) -> bool { @.is_ok() }",
        wrong: "<Unprotected as Design<P, I>>::build(setup)",
        right: "unsafe { <Unprotected as Design<P, I>>::build(setup) }",
        code: "E0133",
        says: "build` is unsafe and requires",
    },
    Case {
        name: "an IOMMU reports completion without a promise",
        program: "pub struct Lying<I>(I);
            @ impl<I: Iommu> Iommu for Lying<I> {
                type Ticket = ();
                fn capabilities(&self) -> Capabilities { self.0.capabilities() }
                unsafe fn open_domain(&self, to: Translation) -> Result<DomainId, AttachError> { unsafe { self.0.open_domain(to) } }
                unsafe fn close_domain(&self, id: DomainId) -> Result<(), AttachError> { unsafe { self.0.close_domain(id) } }
                fn attach(&self, id: DomainId, device: SourceId) -> Result<(), AttachError> { self.0.attach(id, device) }
                fn detach(&self, id: DomainId, device: SourceId) -> Result<(), AttachError> { self.0.detach(id, device) }
                fn submit(&self, _: &[Invalidation]) -> Result<(), QueueError> { Ok(()) }
                fn is_done(&self, (): ()) -> Result<bool, QueueError> { Ok(true) }
            }",
        wrong: "",
        right: "unsafe",
        code: "E0200",
        says: "the trait `Iommu` requires an `unsafe impl` declaration",
    },
    Case {
        name: "a mapper unmaps nothing, and promises nothing",
        program: "pub struct Never<M>(M);
            @ impl<M: Mapper> Mapper for Never<M> {
                unsafe fn map(&self, request: &Request<'_>) -> Result<IovaRange, RawMapError> { unsafe { self.0.map(request) } }
                fn unmap(&self, _: IovaRange, _: &mut Runs) -> Result<(), UnmapError> { Ok(()) }
                fn commit(&self, revocation: &mut Runs) -> Result<Committed, CommitError> { self.0.commit(revocation) }
                fn tick(&self) -> Result<(), CommitError> { Ok(()) }
                fn due_us(&self) -> Option<u64> { None }
                fn usage(&self) -> Usage { Usage::default() }
                fn space(&self) -> &dyn Space { self.0.space() }
            }",
        wrong: "",
        right: "unsafe",
        code: "E0200",
        says: "the trait `Mapper` requires an `unsafe impl` declaration",
    },
    Case {
        name: "a design promises nothing",
        program: "pub struct Mine;
            impl DesignInfo for Mine { const INFO: Info = Unprotected::INFO; }
            @ impl<P: Platform, I: Iommu> Design<P, I> for Mine {
                type Mapper = <Unprotected as Design<P, I>>::Mapper;
                unsafe fn build_in<'t>(
                    to: &'t mut MaybeUninit<Self::Mapper>,
                    setup: DomainSetup<'_, P, I>,
                ) -> Result<&'t mut Self::Mapper, NewDomainError> {
                    Ok(to.write(unsafe { <Unprotected as Design<P, I>>::build(setup) }?))
                }
            }",
        wrong: "",
        right: "unsafe",
        code: "E0200",
        says: "the trait `Design<P, I>` requires an `unsafe impl` declaration",
    },
    Case {
        name: "a host promises nothing",
        program: "pub struct Host<P>(P);
            @ impl<P: Platform> Platform for Host<P> {
                type Lock<T: Send> = P::Lock<T>;
                type CpuWords = P::CpuWords;
                fn lock<T: Send>(&self, class: LockClass, value: T) -> P::Lock<T> { self.0.lock(class, value) }
                fn cpu(&self) -> CpuHint { self.0.cpu() }
                fn cpus(&self) -> u32 { self.0.cpus() }
                fn allocate_frame(&self, _: Context) -> Result<PhysAddr, NoMemory> { Ok(PhysAddr::new(0)) }
                unsafe fn frame(&self, frame: PhysAddr) -> &Frame { unsafe { self.0.frame(frame) } }
                unsafe fn free_frame(&self, frame: PhysAddr) { unsafe { self.0.free_frame(frame) } }
                fn table_barrier(&self, _: &[Entry], _: bool) {}
                fn cpu_words(&self, value: u64) -> Result<P::CpuWords, NoMemory> { self.0.cpu_words(value) }
                fn now_us(&self) -> u64 { 0 }
                fn pause(&self, _: Wait) {}
            }",
        wrong: "",
        right: "unsafe",
        code: "E0200",
        says: "the trait `Platform` requires an `unsafe impl` declaration",
    },
    Case {
        name: "an allocator promises nothing",
        program: "pub struct One;
            @ impl<P: Platform> IovaAllocator<P> for One {
                fn allocate(&self, _: &P, _: &IovaRequest) -> Result<IovaRange, MapError> { Ok(IovaRange::new(1, 1).unwrap()) }
                fn claim(&self, _: &P, _: IovaRange) -> Result<Claim, UnmapError> { Ok(Claim::Held) }
                fn free(&self, _: &P, _: IovaRange, _: &Proof) {}
                fn live(&self) -> usize { 0 }
            }",
        wrong: "",
        right: "unsafe",
        code: "E0200",
        says: "IovaAllocator<P>` requires an `unsafe impl` declaration",
    },
    Case {
        name: "locks promise nothing",
        program: "pub struct None; @ impl Locking for None { const TAKES_PAGES_OUT: bool = true; }",
        wrong: "",
        right: "unsafe",
        code: "E0200",
        says: "the trait `Locking` requires an `unsafe impl` declaration",
    },
    Case {
        name: "a buffer promises nothing",
        program: "pub struct Anywhere([Segment; 1]);
            @ impl DmaBuffer for Anywhere { fn segments(&self) -> &[Segment] { &self.0 } }",
        wrong: "",
        right: "unsafe",
        code: "E0200",
        says: "the trait `DmaBuffer` requires an `unsafe impl` declaration",
    },
    Case {
        name: "a buffer that is used with the device promises nothing",
        program: "pub struct Anywhere([Segment; 1]);
            unsafe impl DmaBuffer for Anywhere { fn segments(&self) -> &[Segment] { &self.0 } }
            @ impl SharedBuffer for Anywhere {}",
        wrong: "",
        right: "unsafe",
        code: "E0200",
        says: "the trait `SharedBuffer` requires an `unsafe impl` declaration",
    },
    Case {
        name: "lost memory is handled as a refusal",
        program: "pub fn code(error: RawMapError) -> i32 { match error { RawMapError::Refused(_) => -22, @ } }",
        wrong: "",
        right: "RawMapError::Lost(_) => -5,",
        code: "E0004",
        says: "`RawMapError::Lost(_)` not covered",
    },
    Case {
        name: "a batch is made and not committed",
        program: "#[deny(unused_must_use)]
            pub fn batch<M: Mapper + ?Sized>(domain: &Domain<M>) -> Result<(), CommitError> { @ }",
        wrong: "domain.raw_batch(); Ok(())",
        right: "domain.raw_batch().commit()",
        code: "",
        says: "unused `RawBatch` that must be used",
    },
    Case {
        name: "a batch is submitted and not waited for",
        program: "#[deny(unused_must_use)]
            pub fn submit<M: Mapper + ?Sized>(batch: RawBatch<&Domain<M>>) -> Result<(), CommitError> { @ }",
        wrong: "batch.submit()?; Ok(())",
        right: "batch.submit()?.wait()",
        code: "",
        says: "unused `Submitted` that must be used",
    },
    Case {
        name: "a submitted batch is unmapped into",
        program: "pub fn submit<M: Mapper + ?Sized>(mut batch: RawBatch<&Domain<M>>, range: IovaRange) -> Result<(), CommitError> {
                @
                submitted.wait()
            }",
        wrong: "let submitted = batch.submit()?; let _ = batch.unmap(range);",
        right: "let _ = batch.unmap(range); let submitted = batch.submit()?;",
        code: "E0382",
        says: "borrow of moved value: `batch`",
    },
    Case {
        name: "a batch that was submitted in its place is unmapped into before the wait",
        program: "pub fn submit<M: Mapper + ?Sized>(batch: &mut RawBatch<&Domain<M>>, range: IovaRange) -> Result<(), CommitError> {
                let submitted = batch.submit_so_far()?;
                @
                Ok(())
            }",
        wrong: "let _ = batch.unmap(range); submitted.wait()?;",
        right: "submitted.wait()?; let _ = batch.unmap(range);",
        code: "E0499",
        says: "cannot borrow `*batch` as mutable more than once at a time",
    },
    Case {
        name: "buffers are handed on at the submission",
        program: "pub fn buffers<M: Mapper + ?Sized, B: DmaBuffer>(batch: Batch<&Domain<M>, B>) -> Result<usize, CommitError> {
                let submitted = batch.submit()?;
                Ok(@.into_iter().count())
            }",
        wrong: "submitted",
        right: "submitted.wait()?",
        code: "E0599",
        says: "`into_iter` exists for struct `Submitted",
    },
    Case {
        name: "a batch is waited for twice",
        program: "pub fn twice<M: Mapper + ?Sized>(batch: RawBatch<&Domain<M>>) -> Result<(), CommitError> {
                let submitted = batch.submit()?;
                @
            }",
        wrong: "submitted.wait()?; submitted.wait()",
        right: "submitted.wait()",
        code: "E0382",
        says: "use of moved value: `submitted`",
    },
    Case {
        name: "a batch in flight outlives its domain",
        program: "pub fn flies<I: Iommu + Copy, P: Platform + Copy>(iommu: I, platform: P) -> Result<(), NewDomainError> {
                let domain = Magazine::open(iommu, platform, Protection::Strict)?;
                let submitted = domain.raw_batch().submit();
                @
                let _ = submitted.map(|submitted| submitted.wait());
                Ok(())
            }",
        wrong: "drop(domain);",
        right: "",
        code: "E0505",
        says: "cannot move out of `domain` because it is borrowed",
    },
    Case {
        name: "a mapper is asked for a batch that it has not submitted",
        program: "pub fn take<M: Mapper>(mapper: &M, runs: &mut Runs, in_flight: &InFlight) -> Result<Option<Committed>, CommitError> { @ }",
        wrong: "mapper.take_back(runs, in_flight, true)",
        right: "unsafe { mapper.take_back(runs, in_flight, true) }",
        code: "E0133",
        says: "take_back` is unsafe and requires",
    },
    Case {
        name: "a buffer that is not a `SharedBuffer` is used with the device",
        program: "pub fn use_it<B: @>(mapping: &Mapping<B>) -> usize { mapping.shared().segments().len() }",
        wrong: "DmaBuffer",
        right: "SharedBuffer",
        code: "E0277",
        says: "the trait bound `B: SharedBuffer` is not satisfied",
    },
    Case {
        name: "a reference to a domain does not promise that it is always the same domain",
        program: "pub struct Flips<M: Mapper>(Domain<M>, Domain<M>);
            impl<M: Mapper> core::ops::Deref for Flips<M> {
                type Target = Domain<M>;
                fn deref(&self) -> &Domain<M> { &self.0 }
            }
            @ impl<M: Mapper> DomainRef for Flips<M> {
                type Mapper = M;
            }",
        wrong: "",
        right: "unsafe",
        code: "E0200",
        says: "the trait `DomainRef` requires an `unsafe impl` declaration",
    },
    Case {
        name: "a batch is made of any type that derefs to a domain",
        program: "pub fn batch<H: @>(handle: H) -> RawBatch<H> { RawBatch::new(handle) }",
        wrong: "core::ops::Deref<Target = DynDomain>",
        right: "DomainRef",
        code: "E0277",
        says: "DomainRef` is not satisfied",
    },
    Case {
        name: "a mapping of a buffer that is not `Send` goes to another thread",
        program: "fn send<T: Send>() {}
            pub fn domain<M: Mapper + 'static, B: DmaBuffer + @>() {
                send::<Domain<M>>();
                send::<M>();
                send::<Box<DynDomain>>();
                send::<RawBatch<&'static Domain<M>>>();
                send::<Batch<&'static Domain<M>, B>>();
                send::<Mapping<B>>();
            }",
        wrong: "Sized",
        right: "Send",
        code: "E0277",
        says: "`B` cannot be sent between threads safely",
    },
];

const USES: &str = "#![allow(unused_imports)]
    use core::mem::MaybeUninit;
    use portcullis::mapper::{Design, DesignInfo, DomainSetup, Info, Locking, Mapper, Usage};
    use portcullis::designs::{Magazine, Unprotected};
    use portcullis::domain::{Batch, DmaBuffer, DomainOf, DomainRef, DynDomain, Mapping, RawBatch, SharedBuffer};
    use portcullis::invalidation::Runs;
    use portcullis::iommu::AttachError;
    use portcullis::iova::{Claim, IovaAllocator, IovaRequest};
    use portcullis::platform::{Context, CpuHint, LockClass, Wait};
    use portcullis::proof::{Committed, Proof};
    use portcullis::table::{Entry, Frame, FreedTables};
    use portcullis::{
        Access, AddressSpace, Capabilities, CommitError, Domain, DomainConfig, DomainId, InFlight, Invalidation, Iommu, Iova,
        IovaRange, MapError, NewDomainError, NoMemory, Open, PAGE_SIZE, PhysAddr, Platform, Protection, QueueError, RawMapError, Request, Segment, SourceId,
        Space, Translation, UnmapError,
    };
";

#[test]
fn what_breaks_the_contract_does_not_compile() {
    check(&["portcullis"], USES, CASES);
}
