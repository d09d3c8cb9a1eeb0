//! Error numbers of the kernel. The description of an error goes to the log first.

use portcullis::iommu::AttachError;
use portcullis::{CommitError, MapError, NewDomainError, RawMapError, RawUnmapError, UnmapError};
use portcullis_vtd::BringUpError;

pub(crate) const ENOENT: i32 = -2;
pub(crate) const EIO: i32 = -5;
pub(crate) const ENOMEM: i32 = -12;
pub(crate) const EBUSY: i32 = -16;
pub(crate) const ENODEV: i32 = -19;
pub(crate) const EINVAL: i32 = -22;
pub(crate) const ENOSPC: i32 = -28;
pub(crate) const EOPNOTSUPP: i32 = -95;

/// The number that stands for an error in C.
pub(crate) trait Errno {
    fn errno(&self) -> i32;
}

impl Errno for AttachError {
    fn errno(&self) -> i32 {
        match self {
            Self::NoMemory(_) => ENOMEM,
            Self::NoDomainId => ENOSPC,
            Self::Attached(_) | Self::Inherited(_) | Self::Busy(_) => EBUSY,
            Self::Unsupported => EOPNOTSUPP,
            Self::NotAttached(_) | Self::NoSuchDomain(_) => EINVAL,
            _ => EIO,
        }
    }
}

impl Errno for BringUpError {
    fn errno(&self) -> i32 {
        match self {
            Self::NoUnit { .. } | Self::Gone => ENODEV,
            Self::InUse { .. } | Self::RemapsInterrupts | Self::Changing => EBUSY,
            Self::NoMemory(_) => ENOMEM,
            Self::NoInvalidationQueue
            | Self::NoTableFormat(_)
            | Self::DomainIds
            | Self::FaultRecords(_)
            | Self::Block { .. } => EOPNOTSUPP,
            Self::Admission(error) => error.errno(),
            _ => EIO,
        }
    }
}

impl Errno for NewDomainError {
    fn errno(&self) -> i32 {
        match self {
            Self::NoMemory(_) => ENOMEM,
            Self::Protection | Self::Width(_) | Self::NoRings => EOPNOTSUPP,
            Self::BadRange(_) => EINVAL,
            _ => EIO,
        }
    }
}

impl Errno for RawMapError {
    fn errno(&self) -> i32 {
        match self {
            Self::Refused(MapError::NoMemory(_)) => ENOMEM,
            Self::Refused(MapError::Exhausted { .. }) => ENOSPC,
            Self::Refused(_) => EINVAL,
            Self::Lost(_) => EIO,
        }
    }
}

impl Errno for UnmapError {
    fn errno(&self) -> i32 {
        EINVAL
    }
}

impl Errno for CommitError {
    fn errno(&self) -> i32 {
        EIO
    }
}

impl Errno for RawUnmapError {
    fn errno(&self) -> i32 {
        match self {
            Self::Refused(error) => error.errno(),
            Self::Commit(error) => error.errno(),
        }
    }
}
