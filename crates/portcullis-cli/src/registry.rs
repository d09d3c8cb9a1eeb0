//! The designs that the program knows: those of the list, and those of the crate that runs it.

use crate::{Failure, nearest};
use portcullis::mapper::{Design, Info};
#[cfg(target_os = "linux")]
use portcullis_bench::{BenchDesign, TimedDesign};
use portcullis_designs::{Choice, DesignId, Named};
use portcullis_sim::compare::LINUX;
use portcullis_sim::{LabDesign, LabPlatform, LabUnit};

/// What a design has to be so that every command takes it: one over the hosts and IOMMUs of the laboratory and of the
/// benchmarks. A design over any host and IOMMU is one.
#[cfg(target_os = "linux")]
pub trait AnyDesign: Design<LabPlatform, LabUnit> + TimedDesign {}
#[cfg(target_os = "linux")]
impl<D: Design<LabPlatform, LabUnit> + TimedDesign> AnyDesign for D {}

/// What a design has to be so that every command takes it: one over the host and the IOMMU of the laboratory. A design
/// over any host and IOMMU is one.
#[cfg(not(target_os = "linux"))]
pub trait AnyDesign: Design<LabPlatform, LabUnit> {}
#[cfg(not(target_os = "linux"))]
impl<D: Design<LabPlatform, LabUnit>> AnyDesign for D {}

/// A design that the program knows.
#[derive(Clone, Copy)]
pub(crate) struct Known {
    pub(crate) lab: LabDesign,
    #[cfg(target_os = "linux")]
    pub(crate) bench: BenchDesign,
}

impl Named for Known {
    fn info(self) -> &'static Info {
        self.lab.info()
    }
}

/// The designs that the program knows.
pub struct Registry(Vec<Known>);

impl Default for Registry {
    /// The designs of the list.
    fn default() -> Self {
        let known = |design: &DesignId| Known {
            lab: (*design).into(),
            #[cfg(target_os = "linux")]
            bench: (*design).into(),
        };
        Self(DesignId::ALL.iter().map(known).collect())
    }
}

impl Registry {
    /// Adds the design `D`, behind those that are there.
    ///
    /// # Panics
    /// If a design of this id is there already: the id would not say which is meant.
    #[must_use]
    pub fn with<D: AnyDesign>(mut self) -> Self {
        let id = D::INFO.id;
        assert!(!self.0.iter().any(|known| known.info().id == id), "there is a design `{id}` already");
        self.0.push(Known {
            lab: LabDesign::of::<D>(),
            #[cfg(target_os = "linux")]
            bench: BenchDesign::of::<D>(),
        });
        self
    }

    /// All of them.
    pub(crate) fn all(&self) -> &[Known] {
        &self.0
    }

    /// A design with its parameters. `linux` is a name for the design that Linux has.
    pub(crate) fn design(&self, text: &str) -> Result<Choice<Known>, Failure> {
        let id = if text == "linux" { LINUX } else { text };
        Choice::parse_among(&self.0, id).map_err(|error| {
            let name = text.split(':').next().unwrap_or(text);
            let known = self.0.iter().map(|design| design.info().id).chain(["linux"]);
            Failure::Input(format!("{error}{}", nearest::tip(name, known)))
        })
    }

    /// The designs of `--designs`, or all.
    pub(crate) fn designs(&self, texts: &[String]) -> Result<Vec<Choice<Known>>, Failure> {
        if texts.is_empty() {
            return Ok(self.0.iter().map(|design| Choice::from(*design)).collect());
        }
        let mut designs: Vec<Choice<Known>> = Vec::new();
        for text in texts {
            let choice = self.design(text)?;
            if designs.iter().any(|one| one.to_string() == choice.to_string()) {
                return Err(Failure::Input(format!(
                    "--designs {text}: expected each design once, but `{choice}` appears twice"
                )));
            }
            designs.push(choice);
        }
        Ok(designs)
    }
}

/// The choice, as the laboratory takes it.
pub(crate) fn in_the_lab(Choice { design, options }: Choice<Known>) -> portcullis_sim::Choice {
    Choice { design: design.lab, options }
}
