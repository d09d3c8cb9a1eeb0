//! Colours: one for each meaning, on a light page and on a dark one.

use crate::document::Protection;
use plotters::style::RGBColor;
use std::fmt::Write;

/// The meaning of a colour.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ink {
    Page,
    Panel,
    Text,
    Muted,
    Grid,
    Strict,
    Deferred,
    Unprotected,
    Safe,
    Exposed,
    Iotlb,
    CacheL3,
    CacheL2,
    CacheL1,
}

impl Ink {
    const ALL: [Self; 14] = [
        Self::Page,
        Self::Panel,
        Self::Text,
        Self::Muted,
        Self::Grid,
        Self::Strict,
        Self::Deferred,
        Self::Unprotected,
        Self::Safe,
        Self::Exposed,
        Self::Iotlb,
        Self::CacheL3,
        Self::CacheL2,
        Self::CacheL1,
    ];

    /// The name of its style sheet variable, and its colour on a light and on a dark page.
    const fn definition(self) -> (&'static str, u32, u32) {
        match self {
            Self::Page => ("page", 0xff_ff_ff, 0x12_16_1b),
            Self::Panel => ("panel", 0xf4_f6_f8, 0x1b_21_28),
            Self::Text => ("text", 0x1b_1f_24, 0xe7_ea_ee),
            Self::Muted => ("muted", 0x55_5e_68, 0xa0_ab_b6),
            Self::Grid => ("grid", 0xd5_db_e1, 0x38_41_4b),
            Self::Strict => ("strict", 0x0b_6e_4f, 0x4f_cf_97),
            Self::Deferred => ("deferred", 0xa8_50_04, 0xff_b0_57),
            Self::Unprotected => ("unprotected", 0xb4_25_2c, 0xff_84_7d),
            Self::Safe => ("safe", 0xe6_f4_ec, 0x15_2a_22),
            Self::Exposed => ("exposed", 0xfc_ec_ec, 0x31_1d_20),
            Self::Iotlb => ("iotlb", 0x35_6c_b5, 0x74_ad_ff),
            Self::CacheL3 => ("cache-l3", 0x8a_4f_b0, 0xcf_9d_f2),
            Self::CacheL2 => ("cache-l2", 0xc2_6b_17, 0xe8_a8_62),
            Self::CacheL1 => ("cache-l1", 0x7b_82_8a, 0xb5_bc_c4),
        }
    }

    /// The colours of curves without a specific meaning.
    pub(super) const CURVES: [Self; 6] =
        [Self::Iotlb, Self::CacheL3, Self::CacheL2, Self::CacheL1, Self::Strict, Self::Unprotected];

    /// The colour of a protection.
    pub(super) fn of(protection: Protection) -> Self {
        match protection {
            Protection::None => Self::Unprotected,
            Protection::Strict => Self::Strict,
            Protection::Deferred => Self::Deferred,
        }
    }

    /// The colour for drawing a picture. [`themed`] replaces it by a variable.
    pub(super) fn rgb(self) -> RGBColor {
        let [_, red, green, blue] = self.definition().1.to_be_bytes();
        RGBColor(red, green, blue)
    }

    /// The colour in a style attribute.
    pub(super) fn variable(self) -> String {
        format!("var(--{})", self.definition().0)
    }
}

/// The variables of the style sheet.
pub(super) fn variables() -> String {
    let mut css = String::new();
    for (open, close, dark) in [(":root{", "}", false), ("@media (prefers-color-scheme:dark){:root{", "}}", true)] {
        css.push_str(open);
        for (name, light_rgb, dark_rgb) in Ink::ALL.map(Ink::definition) {
            let rgb = if dark { dark_rgb } else { light_rgb };
            let _ = write!(css, "--{name}:#{rgb:06x};");
        }
        css.push_str(close);
    }
    css
}

/// Replaces the colours of a picture by the page's variables, so that they follow the page's theme.
pub(super) fn themed(svg: &str) -> String {
    Ink::ALL.iter().fold(svg.to_owned(), |svg, ink| {
        svg.replace(&format!("\"#{:06X}\"", ink.definition().1), &format!("\"{}\"", ink.variable()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_meanings_share_a_colour_or_a_name() {
        for (index, ink) in Ink::ALL.iter().enumerate() {
            for other in &Ink::ALL[index + 1..] {
                let ((name, light, dark), (other_name, other_light, other_dark)) =
                    (ink.definition(), other.definition());
                assert!(name != other_name && light != other_light && dark != other_dark, "{ink:?} and {other:?}");
            }
        }
    }

    /// The contrast of two colours, as defined by WCAG 2.1.
    fn contrast(one: u32, other: u32) -> f64 {
        let luminance = |rgb: u32| {
            let [_, red, green, blue] = rgb.to_be_bytes().map(|channel| {
                let part = f64::from(channel) / 255.0;
                if part <= 0.03928 { part / 12.92 } else { ((part + 0.055) / 1.055).powf(2.4) }
            });
            0.2126 * red + 0.7152 * green + 0.0722 * blue
        };
        let (one, other) = (luminance(one), luminance(other));
        (one.max(other) + 0.05) / (one.min(other) + 0.05)
    }

    #[test]
    fn words_and_marks_stand_out_from_what_lies_behind_them() {
        use Ink::{Deferred, Exposed, Muted, Page, Panel, Safe, Strict, Text, Unprotected};
        for behind in [Page, Panel, Safe, Exposed] {
            for (ink, least) in [(Text, 7.0), (Muted, 4.5), (Strict, 4.5), (Deferred, 4.5), (Unprotected, 4.5)] {
                let ((_, light, dark), (_, light_behind, dark_behind)) = (ink.definition(), behind.definition());
                let (light, dark) = (contrast(light, light_behind), contrast(dark, dark_behind));
                assert!(light >= least && dark >= least, "{ink:?} on {behind:?}: {light:.1} and {dark:.1}");
            }
        }
        for ink in [Ink::Iotlb, Ink::CacheL3, Ink::CacheL2, Ink::CacheL1] {
            let ((_, light, dark), (_, light_page, dark_page)) = (ink.definition(), Page.definition());
            assert!(contrast(light, light_page) >= 3.0 && contrast(dark, dark_page) >= 3.0, "{ink:?}");
        }
    }
}
