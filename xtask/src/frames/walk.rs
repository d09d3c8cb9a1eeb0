//! Walks the instructions of one function, to find how deep the stack is at each of its calls.

use super::image::{Image, Kind, Place, Target};
use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind,
    Register,
};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// The target of a call.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Callee {
    Function(usize),
    /// A symbol that is not in the object.
    Missing(String),
    /// The function at this offset in some vtable, or in one that this call has returned.
    Slot(Option<Box<Callee>>, u64),
    /// An unknown target; the value is the offset of the call.
    Unknown(u64),
}

/// What is known of the registers in which a function gets its arguments. A register may hold a vtable, or a
/// function loaded from one.
pub(super) type Arguments = BTreeMap<Register, Value>;

/// The result for one function.
#[derive(Clone, Debug, Default)]
pub(super) struct Walked {
    /// Bytes of stack that it takes, without its return address.
    pub(super) frame: u64,
    /// For each callee, the largest depth of the stack below this function's return address at a call, including
    /// the return address of the call.
    pub(super) calls: BTreeMap<Callee, u64>,
    /// The data that it refers to.
    pub(super) data: BTreeSet<Place>,
    /// Whether it ever returns.
    pub(super) returns: bool,
    /// What each function that it calls gets from it at every one of these calls.
    pub(super) arguments: HashMap<usize, Arguments>,
}

/// What a register or a word of the stack is known to hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    /// The address of something in the object.
    Address(Target),
    /// A value that a call has returned, or one half of it.
    Returned(Box<Callee>),
    /// A value that was loaded from this offset after some pointer, or after one that this call has returned.
    Loaded(Option<Box<Callee>>, u64),
    /// The address of the stack this many bytes below the return address.
    Stack(u64),
}

/// The entries that are the same in both.
fn common<K: Ord + Copy>(one: &BTreeMap<K, Value>, other: &BTreeMap<K, Value>) -> BTreeMap<K, Value> {
    one.iter().filter(|(key, value)| other.get(key) == Some(value)).map(|(key, value)| (*key, value.clone())).collect()
}

/// Notes what a function gets at one more call: known is what it gets at all of them.
pub(super) fn agree(known: &mut HashMap<usize, Arguments>, callee: usize, given: Arguments) {
    let agreed = known.get(&callee).map(|before| common(before, &given));
    known.insert(callee, agreed.unwrap_or(given));
}

/// What is known before an instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
struct State {
    /// Bytes of stack below the return address.
    depth: u64,
    registers: BTreeMap<Register, Value>,
    /// Known words of the stack, by their depth.
    words: BTreeMap<u64, Value>,
    /// The depth with which the stack pointer has just been compared.
    compared: Option<u64>,
}

impl State {
    /// What is known where two paths join. `None` if the stack is not equally deep on both.
    fn meet(&self, other: &Self) -> Option<Self> {
        (self.depth == other.depth).then(|| Self {
            depth: self.depth,
            registers: common(&self.registers, &other.registers),
            words: common(&self.words, &other.words),
            compared: self.compared.filter(|_| self.compared == other.compared),
        })
    }

    /// The depth of the stack word that an instruction names.
    fn word(&self, instruction: &Instruction) -> Option<u64> {
        if instruction.memory_index() != Register::None {
            return None;
        }
        let base = match instruction.memory_base() {
            Register::RSP => self.depth,
            other => match self.registers.get(&other)? {
                Value::Stack(depth) => *depth,
                _ => return None,
            },
        };
        Some(base.wrapping_sub(instruction.memory_displacement64()))
    }
}

/// How the relocation of an instruction is read, and where it leads.
type Relocated = Option<(Kind, Target)>;

/// The registers that a call preserves.
const KEPT: [Register; 6] = [Register::RBX, Register::RBP, Register::R12, Register::R13, Register::R14, Register::R15];

/// Walks the function `index`, which gets `arguments`. `returns` says which functions are known to return.
pub(super) fn walk<F: Fn(usize) -> bool>(
    image: &Image,
    index: usize,
    arguments: &Arguments,
    returns: F,
) -> Result<Walked, String> {
    let start = State { depth: 0, registers: arguments.clone(), words: BTreeMap::new(), compared: None };
    let (states, factory) = (BTreeMap::from([(0, start)]), InstructionInfoFactory::new());
    let mut walk = Walk { image, index, returns, factory, walked: Walked::default(), states, open: vec![0] };
    while let Some(offset) = walk.open.pop() {
        walk.step(offset)?;
    }
    Ok(walk.walked)
}

struct Walk<'i, F> {
    image: &'i Image,
    index: usize,
    returns: F,
    factory: InstructionInfoFactory,
    walked: Walked,
    /// The state before each instruction, by its offset in the function.
    states: BTreeMap<u64, State>,
    /// The offsets at which the walk has to continue.
    open: Vec<u64>,
}

impl<F: Fn(usize) -> bool> Walk<'_, F> {
    fn error(&self, offset: u64, what: &str) -> String {
        format!("{}+{offset:#x}: {what}", self.image.functions[self.index].name)
    }

    /// Notes that `offset` is reached with `state`, and continues there if this adds something new.
    fn reach(&mut self, offset: u64, state: State) -> Result<(), String> {
        let known = match self.states.get(&offset) {
            None => state,
            Some(before) => match before.meet(&state) {
                Some(met) if met == *before => return Ok(()),
                Some(met) => met,
                None => return Err(self.error(offset, "the depth of the stack differs between the paths to here")),
            },
        };
        self.states.insert(offset, known);
        self.open.push(offset);
        Ok(())
    }

    fn step(&mut self, offset: u64) -> Result<(), String> {
        let function = &self.image.functions[self.index];
        let section = &self.image.sections[function.place.section];
        let from = function.place.offset + offset;
        let end = (function.place.offset + function.size).min(section.bytes.len() as u64);
        if from >= end {
            return Err(self.error(offset, "runs past the end of its code"));
        }
        let bytes = &section.bytes[from as usize..end as usize];
        let instruction = Decoder::with_ip(64, bytes, offset, DecoderOptions::NONE).decode();
        if instruction.code() == Code::INVALID {
            return Err(self.error(offset, "not an instruction"));
        }
        let next = instruction.next_ip();
        // An instruction has at most one relocation that matters here. A second one could only be data in a move.
        let mut relocation = None;
        for (at, found) in section.relocations.range(from..from + instruction.len() as u64) {
            let target = found.target(function.place.offset + next - at);
            if let Target::Place(place) = target
                && !self.image.sections[place.section].is_code
            {
                self.walked.data.insert(place);
            }
            relocation = relocation.or(Some((found.kind, target)));
        }
        let mut state = self.states[&offset].clone();
        // A leaf function may use the memory below its stack pointer.
        if let Some(depth) = state.word(&instruction).filter(|_| instruction.memory_base() == Register::RSP)
            && depth < 1 << 32
            && instruction.mnemonic() != Mnemonic::Lea
        {
            self.walked.frame = self.walked.frame.max(depth);
        }
        match instruction.flow_control() {
            FlowControl::Next => {
                self.change(&mut state, &instruction, relocation)?;
                self.reach(next, state)
            }
            FlowControl::Return => {
                if state.depth != 0 {
                    return Err(self.error(offset, "returns with something on the stack"));
                }
                self.walked.returns = true;
                Ok(())
            }
            FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch | FlowControl::IndirectBranch => {
                if instruction.flow_control() == FlowControl::ConditionalBranch {
                    // This is the end of a loop that touches a large frame page by page. After it, the stack
                    // pointer has its final value.
                    if let Some(depth) = state.compared.take().filter(|_| instruction.mnemonic() == Mnemonic::Jne) {
                        state.depth = depth;
                        self.walked.frame = self.walked.frame.max(depth);
                        return self.reach(next, state);
                    }
                    self.reach(next, state.clone())?;
                }
                if relocation.is_none() && instruction.op0_kind() == OpKind::NearBranch64 {
                    let to = instruction.near_branch64();
                    if to >= function.size {
                        return Err(self.error(offset, "jumps past its end"));
                    }
                    return self.reach(to, state);
                }
                let callee = self.callee(&instruction, relocation, &state)?;
                let goes_on = self.may_return(&callee);
                if state.depth != 0 && goes_on {
                    return Err(self.error(offset, "jumps to another function with something on the stack"));
                }
                self.walked.returns |= goes_on;
                self.note(callee, state.depth, &state);
                Ok(())
            }
            FlowControl::Call | FlowControl::IndirectCall => {
                let callee = self.callee(&instruction, relocation, &state)?;
                let goes_on = self.may_return(&callee);
                self.note(callee.clone(), state.depth + 8, &state);
                if goes_on {
                    state.registers.retain(|register, _| KEPT.contains(register));
                    for register in [Register::RAX, Register::RDX] {
                        state.registers.insert(register, Value::Returned(Box::new(callee.clone())));
                    }
                    self.reach(next, state)?;
                }
                Ok(())
            }
            // `ud2` and similar instructions.
            FlowControl::Exception | FlowControl::Interrupt => Ok(()),
            _ => Err(self.error(offset, "an instruction with an unknown successor")),
        }
    }

    fn may_return(&self, callee: &Callee) -> bool {
        !matches!(callee, Callee::Function(index) if !(self.returns)(*index))
    }

    fn note(&mut self, callee: Callee, depth: u64, state: &State) {
        if let Callee::Function(index) = callee {
            let mut given: Arguments = state.registers.clone();
            given.retain(|register, value| {
                !KEPT.contains(register) && matches!(value, Value::Loaded(..) | Value::Returned(_))
            });
            agree(&mut self.walked.arguments, index, given);
        }
        self.walked.frame = self.walked.frame.max(depth.saturating_sub(8));
        let deepest = self.walked.calls.entry(callee).or_default();
        *deepest = depth.max(*deepest);
    }

    /// The target of a call, or of a jump out of the function.
    fn callee(&self, instruction: &Instruction, relocation: Relocated, state: &State) -> Result<Callee, String> {
        match self.operand(instruction, 0, relocation, state) {
            Some(Value::Address(Target::Missing(name))) => Ok(Callee::Missing(name)),
            Some(Value::Address(Target::Place(place))) => match self.image.function_at(place) {
                Some(index) => Ok(Callee::Function(index)),
                None => Err(self.error(instruction.ip(), "calls something that is not a function")),
            },
            Some(Value::Loaded(returning, slot)) => Ok(Callee::Slot(returning, slot)),
            _ => Ok(Callee::Unknown(instruction.ip())),
        }
    }

    /// The value of an operand, if it is known.
    fn operand(&self, instruction: &Instruction, operand: u32, relocation: Relocated, state: &State) -> Option<Value> {
        match (instruction.op_kind(operand), relocation) {
            (OpKind::NearBranch64, None) => {
                // The target is within the same section.
                let place = self.image.functions[self.index].place;
                let offset = place.offset.wrapping_add(instruction.near_branch64());
                Some(Value::Address(Target::Place(Place { offset, ..place })))
            }
            (OpKind::NearBranch64, Some((_, target))) | (OpKind::Memory, Some((Kind::Word, target))) => {
                Some(Value::Address(target))
            }
            (OpKind::Memory, None) => self.loaded(instruction, state),
            (OpKind::Memory, Some(_)) => None,
            (OpKind::Register, _) => match instruction.op_register(operand) {
                Register::RSP => Some(Value::Stack(state.depth)),
                register => state.registers.get(&register).cloned(),
            },
            // An immediate value.
            (_, relocation) => relocation.filter(|(kind, _)| *kind == Kind::Absolute).map(|(_, to)| Value::Address(to)),
        }
    }

    /// The value at the memory operand of an instruction.
    fn loaded(&self, instruction: &Instruction, state: &State) -> Option<Value> {
        if let Some(depth) = state.word(instruction) {
            return state.words.get(&depth).cloned();
        }
        let is_table = instruction.memory_index() == Register::None && instruction.memory_base().is_gpr64();
        let slot = instruction.memory_displacement64();
        is_table.then(|| match state.registers.get(&instruction.memory_base()) {
            Some(Value::Returned(callee)) => Value::Loaded(Some(callee.clone()), slot),
            _ => Value::Loaded(None, slot),
        })
    }

    /// Applies an instruction that is not a branch to the state.
    fn change(&mut self, state: &mut State, instruction: &Instruction, relocation: Relocated) -> Result<(), String> {
        let (value, offset) = (self.moved(instruction, relocation, state), instruction.ip());
        let is_compared = instruction.mnemonic() == Mnemonic::Cmp && instruction.op0_register() == Register::RSP;
        state.compared = match state.registers.get(&instruction.op1_register()) {
            Some(Value::Stack(depth)) if is_compared => Some(*depth),
            _ => None,
        };
        let word = (instruction.op0_kind() == OpKind::Memory).then(|| state.word(instruction)).flatten();
        let depth = state.depth;
        let info = self.factory.info(instruction);
        let writes = |access: OpAccess| {
            matches!(access, OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite)
        };
        let written = info.used_registers().iter().filter(|used| writes(used.access()));
        let written: Vec<Register> = written.map(|used| used.register().full_register()).collect();
        state.registers.retain(|register, _| !written.contains(register));
        if let Some(word) = word.filter(|_| writes(info.op0_access())) {
            state.words.retain(|at, _| at.abs_diff(word) >= 8);
            if let Some(value) = &value
                && instruction.mnemonic() == Mnemonic::Mov
                && instruction.op1_kind() == OpKind::Register
                && instruction.op1_register().is_gpr64()
            {
                state.words.insert(word, value.clone());
            }
        }
        if written.contains(&Register::RSP) {
            let is_the_first = instruction.op0_register() == Register::RSP;
            state.depth = match (instruction.mnemonic(), instruction.try_immediate(1)) {
                (Mnemonic::Push | Mnemonic::Pop, _) => {
                    depth.wrapping_add_signed(-i64::from(instruction.stack_pointer_increment()))
                }
                (Mnemonic::Sub, Ok(bytes)) if is_the_first => depth.wrapping_add(bytes),
                (Mnemonic::Add, Ok(bytes)) if is_the_first => depth.wrapping_sub(bytes),
                // The caller's stack pointer was a multiple of 16, so the alignment can move it no further than this.
                (Mnemonic::And, Ok(mask)) if is_the_first => {
                    depth + mask.wrapping_neg().saturating_sub(16) + 8u64.wrapping_sub(depth) % 16
                }
                (Mnemonic::Lea | Mnemonic::Mov, _) if is_the_first => match &value {
                    Some(Value::Stack(depth)) => *depth,
                    _ => return Err(self.error(offset, "sets the stack pointer to an unknown value")),
                },
                _ => return Err(self.error(offset, "changes the stack pointer in an unsupported way")),
            };
            if state.depth > 1 << 32 {
                return Err(self.error(offset, "pops more than it has pushed"));
            }
            // The words below the stack pointer are no longer known.
            let depth = state.depth;
            state.words.retain(|at, _| *at <= depth);
            self.walked.frame = self.walked.frame.max(depth);
            if instruction.mnemonic() == Mnemonic::Push
                && let Some(value) = value
            {
                state.words.insert(depth, value);
            }
            return Ok(());
        }
        if let Some(value) = value
            && instruction.op0_kind() == OpKind::Register
            && matches!(instruction.mnemonic(), Mnemonic::Mov | Mnemonic::Lea | Mnemonic::Pop)
        {
            state.registers.insert(instruction.op0_register().full_register(), value);
        }
        Ok(())
    }

    /// The value that a move or a similar instruction moves, if it is known.
    fn moved(&self, instruction: &Instruction, relocation: Relocated, state: &State) -> Option<Value> {
        let is_wide = instruction.op1_kind() != OpKind::Memory || instruction.op0_register().is_gpr64();
        match (instruction.mnemonic(), relocation) {
            (Mnemonic::Mov, relocation) if is_wide => self.operand(instruction, 1, relocation, state),
            (Mnemonic::Lea, Some((Kind::Relative, target))) => Some(Value::Address(target)),
            (Mnemonic::Lea, None) => state.word(instruction).map(Value::Stack),
            (Mnemonic::Push, None) if instruction.op0_kind() == OpKind::Register => {
                self.operand(instruction, 0, None, state)
            }
            (Mnemonic::Pop, None) => state.words.get(&state.depth).cloned(),
            _ => None,
        }
    }
}
