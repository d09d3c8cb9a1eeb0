//! Finds the deepest path below a function.

use super::image::{Image, Place, Target};
use super::walk::{Arguments, Callee, Walked, agree, walk};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// The names of functions that belong to the host. Their stack is the host's responsibility, so it is not counted.
/// A function of the host that runs code of the library is an exception.
const HOOKS: [&str; 5] = [
    "<no_std_proof::host::Host as ",
    "<no_std_proof::host::Copies as ",
    "<no_std_proof::allocator::Bump as ",
    "__rustc::",
    "no_std_proof::panic",
];

/// Functions that compilers expect every host to have. They are leaves, and on most hosts written in assembly.
const MEMORY: [&str; 5] = ["memcpy", "memmove", "memset", "memcmp", "bcmp"];

/// Functions that call themselves, the largest number of times that they do so, and the reason for this bound.
const RECURSIONS: [(&str, u64, &str); 2] = [
    (
        "portcullis_designs::fast_and_safe::radix_tree::walk::<",
        5,
        "once for each of four branches, and once for a leaf",
    ),
    ("portcullis_designs::fast_and_safe::radix_tree::free::<", 5, "as `walk`"),
];

/// Names of functions that run a closure of the library, wherever they are defined.
const RUNNERS: [&str; 2] = [">::walk::<", ">::with::<"];

/// The traits whose tables of functions (vtables) library code calls through: those of the library itself.
const TRAITS: [&str; 2] = [" as portcullis::", " as portcullis_vtd::"];

/// Functions that must not be called: they are called by code that panics on a failed allocation instead of
/// returning an error.
const FORBIDDEN: [&str; 2] = ["alloc::alloc::handle_alloc_error", "alloc::raw_vec::handle_error"];

/// The number of calls across which arguments are followed. A compiler may pass a function where it could pass the
/// vtable that contains it.
const ARGUMENT_CALLS: usize = 3;

/// A function on a path. The bytes reach from its return address to that of the next function, or to the end of its
/// frame.
pub(super) struct Step {
    pub(super) function: usize,
    pub(super) bytes: u64,
}

pub(super) struct Graph<'i> {
    pub(super) image: &'i Image,
    walked: RefCell<HashMap<usize, Result<Walked, String>>>,
    returning: HashSet<usize>,
    /// What is known of the arguments of each function: what all of its callers pass alike.
    arguments: HashMap<usize, Arguments>,
}

impl<'i> Graph<'i> {
    pub(super) fn new(image: &'i Image) -> Self {
        let (returning, arguments) = (HashSet::new(), HashMap::new());
        let mut graph = Self { image, walked: RefCell::default(), returning, arguments };
        graph.find_returning();
        for _ in 0..ARGUMENT_CALLS {
            graph.find_arguments();
        }
        graph
    }

    /// Finds the functions that may return. The code after a call of a function that never returns is not part of
    /// the caller. A function counts as not returning until the search finds that it returns.
    fn find_returning(&mut self) {
        let functions = 0..self.image.functions.len();
        self.returning = functions.clone().filter(|index| self.is_hook(*index) && !self.is_panic(*index)).collect();
        let mut open: Vec<usize> = functions.filter(|index| !self.is_hook(*index)).collect();
        loop {
            let returns = |index: &mut usize| {
                let known = |index| self.returning.contains(&index);
                walk(self.image, *index, &Arguments::new(), known).is_ok_and(|walked| walked.returns)
            };
            let found: Vec<usize> = open.extract_if(.., returns).collect();
            if found.is_empty() {
                return;
            }
            self.returning.extend(found);
        }
    }

    /// Finds what functions get from their callers, as far as the callers' own arguments are known. Nothing is
    /// known of a function that no other function calls by name.
    fn find_arguments(&mut self) {
        let mut found = HashMap::new();
        for walked in (0..self.image.functions.len()).filter_map(|index| self.walked(index).ok()) {
            walked.arguments.into_iter().for_each(|(callee, given)| agree(&mut found, callee, given));
        }
        self.arguments = found;
        self.walked.borrow_mut().clear();
    }

    fn name(&self, index: usize) -> &str {
        &self.image.functions[index].name
    }

    fn is_panic(&self, index: usize) -> bool {
        self.name(index).contains("begin_unwind") || self.name(index) == "no_std_proof::panic"
    }

    fn is_hook(&self, index: usize) -> bool {
        let name = self.name(index);
        HOOKS.iter().any(|hook| name.starts_with(hook)) && !RUNNERS.iter().any(|runner| name.contains(runner))
    }

    fn walked(&self, index: usize) -> Result<Walked, String> {
        let known = self.walked.borrow().get(&index).cloned();
        known.unwrap_or_else(|| {
            let given = self.arguments.get(&index).cloned().unwrap_or_default();
            let walked = walk(self.image, index, &given, |index| self.returning.contains(&index));
            self.walked.borrow_mut().insert(index, walked.clone());
            walked
        })
    }

    /// The functions that a call can lead to. `tables` are the vtables that the callers can have.
    fn callees(&self, callee: &Callee, tables: &BTreeSet<Place>) -> Result<BTreeSet<usize>, String> {
        let (named, slot) = match callee {
            Callee::Function(index) => return Ok(BTreeSet::from([*index])),
            Callee::Missing(name) if MEMORY.contains(&name.as_str()) => return Ok(BTreeSet::new()),
            Callee::Missing(name) => return Err(format!("calls `{name}`, which is not in the object")),
            Callee::Unknown(at) => return Err(format!("an indirect call at {at:#x} with an unknown target")),
            Callee::Slot(None, slot) => (BTreeSet::new(), *slot),
            // The data that is named below the call includes any vtable that it returns.
            Callee::Slot(Some(returning), slot) => {
                (self.below(Vec::from_iter(self.callees(returning, tables)?), tables)?.1, *slot)
            }
        };
        let in_slot = |tables: &BTreeSet<Place>| tables.iter().filter_map(|table| self.in_slot(*table, slot)).collect();
        let mut found = [&named, tables].into_iter().map(in_slot).filter(|found: &BTreeSet<usize>| !found.is_empty());
        found.next().ok_or_else(|| format!("calls through byte {slot} of a vtable, and no such vtable is known"))
    }

    /// The functions that the calls of `walked` can lead to, and the depth of the stack at each.
    fn calls(&self, walked: &Walked, tables: &BTreeSet<Place>) -> Result<BTreeMap<usize, u64>, String> {
        let mut calls = BTreeMap::new();
        for (callee, depth) in &walked.calls {
            for index in self.callees(callee, tables)? {
                let deepest: &mut u64 = calls.entry(index).or_default();
                *deepest = (*depth).max(*deepest);
            }
        }
        Ok(calls)
    }

    /// The functions that can be reached from those in `open`, and the data that they name.
    fn below(
        &self,
        mut open: Vec<usize>,
        tables: &BTreeSet<Place>,
    ) -> Result<(BTreeSet<usize>, BTreeSet<Place>), String> {
        let (mut seen, mut named) = (BTreeSet::new(), BTreeSet::new());
        while let Some(index) = open.pop() {
            if !self.is_hook(index) && seen.insert(index) {
                let walked = self.walked(index)?;
                named.extend(&walked.data);
                // A slot that no known vtable has may be in one that is found later.
                open.extend(walked.calls.keys().flat_map(|callee| self.callees(callee, tables).unwrap_or_default()));
            }
        }
        Ok((seen, named))
    }

    /// The function in a slot of a vtable, if the vtable is of one of the library's traits.
    fn in_slot(&self, table: Place, slot: u64) -> Option<usize> {
        let at = |slot| {
            let place = self.image.pointer(Place { offset: table.offset + slot, ..table })?;
            self.image.function_at(place)
        };
        // The first method comes after the drop function, the size and the alignment of the value.
        let is_ours = TRAITS.iter().any(|name| at(24).is_some_and(|method| self.name(method).contains(name)));
        if is_ours { at(slot) } else { None }
    }

    /// The functions that can be reached from `root`, and the vtables that calls on the way can use: `given`, and
    /// all that are named on the way.
    fn reached(&self, root: usize, given: Option<Place>) -> Result<(BTreeSet<usize>, BTreeSet<Place>), String> {
        let mut tables = BTreeSet::from_iter(given);
        let mut before = (0, 0);
        loop {
            let (reached, named) = self.below(vec![root], &tables)?;
            tables.extend(named);
            self.follow_data(&mut tables);
            if before == (reached.len(), tables.len()) {
                return Ok((reached, tables));
            }
            before = (reached.len(), tables.len());
        }
    }

    /// Adds the data that other data points to.
    fn follow_data(&self, places: &mut BTreeSet<Place>) {
        let mut open: Vec<Place> = places.iter().copied().collect();
        while let Some(place) = open.pop() {
            for relocation in self.image.sections[place.section].relocations.values() {
                if let Target::Place(to) = relocation.target(0)
                    && !self.image.sections[to.section].is_code
                    && places.insert(to)
                {
                    open.push(to);
                }
            }
        }
    }

    /// The deepest path from the function `root` down. Its callers can have a vtable at `given`. The bytes are
    /// those of all functions on the path, with their return addresses.
    pub(super) fn deepest(&self, root: usize, given: Option<Place>) -> Result<(u64, Vec<Step>), String> {
        let (_, tables) = self.reached(root, given)?;
        let mut search = Search { graph: self, tables: &tables, done: HashMap::new(), under_way: Vec::new() };
        let bytes = search.below(root)? + 8;
        let mut path = Vec::new();
        let mut at = Some(root);
        while let Some(function) = at {
            let (below, next) = search.done[&function];
            let rest = next.map_or(0, |next| search.done[&next].0);
            path.push(Step { function, bytes: below - rest });
            at = next;
        }
        Ok((bytes, path))
    }

    /// The calls of forbidden functions on all paths from `root`, as pairs of caller and callee.
    pub(super) fn forbidden(&self, root: usize, given: Option<Place>) -> Result<Vec<(usize, usize)>, String> {
        let (reached, tables) = self.reached(root, given)?;
        let mut found = Vec::new();
        for index in reached {
            let calls = self.calls(&self.walked(index)?, &tables)?;
            let is_forbidden = |callee: &usize| FORBIDDEN.iter().any(|name| self.name(*callee).starts_with(name));
            found.extend(calls.into_keys().filter(is_forbidden).map(|callee| (index, callee)));
        }
        Ok(found)
    }
}

/// A search for the deepest path, with the vtables known.
struct Search<'g, 'i> {
    graph: &'g Graph<'i>,
    tables: &'g BTreeSet<Place>,
    /// For each function, the bytes below its return address, and the next function on its deepest path.
    done: HashMap<usize, (u64, Option<usize>)>,
    under_way: Vec<usize>,
}

impl Search<'_, '_> {
    fn below(&mut self, index: usize) -> Result<u64, String> {
        if let Some((bytes, _)) = self.done.get(&index) {
            return Ok(*bytes);
        }
        if let Some(at) = self.under_way.iter().position(|above| *above == index) {
            let names: Vec<&str> = self.under_way[at..].iter().map(|index| self.graph.name(*index)).collect();
            return Err(format!("a recursion without a known bound: {}", names.join("\n    -> ")));
        }
        if self.graph.is_hook(index) {
            self.done.insert(index, (0, None));
            return Ok(0);
        }
        let walked = self.graph.walked(index)?;
        self.under_way.push(index);
        let named = |error| format!("{}: {error}", self.graph.name(index));
        let mut deepest = (walked.frame, None);
        let mut calls = self.graph.calls(&walked, self.tables).map_err(named)?;
        let recursion = RECURSIONS.iter().find(|(name, ..)| self.graph.name(index).starts_with(name));
        // The frames of all but the last recursive call. The deepest path is then searched from the last one.
        let above = match recursion {
            Some((_, times, _)) => calls.remove(&index).unwrap_or(0) * (times - 1),
            None => 0,
        };
        for (callee, depth) in calls {
            // After its return address, the stack of a hook is the host's.
            let bytes = if self.graph.is_hook(callee) { depth } else { depth + self.below(callee)? };
            if bytes > deepest.0 {
                deepest = (bytes, Some(callee).filter(|callee| !self.graph.is_hook(*callee)));
            }
        }
        self.under_way.pop();
        deepest.0 += above;
        self.done.insert(index, deepest);
        Ok(deepest.0)
    }
}
