//! Memory of an Arrow buffer, as NumPy (`__array_interface__`) and DLPack (`__dlpack__`) read it.
//!
//! The buffer protocol of CPython is not in the stable ABI of Python 3.10, so NumPy reads the address
//! instead. An array that NumPy makes keeps the [`Buffer`] alive, and the buffer keeps the memory.

use std::ffi::{CStr, c_void};
use std::ptr;

use arrow_buffer::Buffer as Memory;
use arrow_schema::DataType;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

/// A type of numbers that Arrow, NumPy and DLPack share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Number {
    /// NumPy's name, without the order of bytes.
    pub(crate) name: &'static str,
    pub(crate) bytes: usize,
    /// DLPack's code of the kind: 0 signed, 1 unsigned, 2 floating, 6 boolean.
    code: u8,
}

const NUMBERS: [(Number, DataType); 11] = [
    (number("i1", 1, 0), DataType::Int8),
    (number("i2", 2, 0), DataType::Int16),
    (number("i4", 4, 0), DataType::Int32),
    (number("i8", 8, 0), DataType::Int64),
    (number("u1", 1, 1), DataType::UInt8),
    (number("u2", 2, 1), DataType::UInt16),
    (number("u4", 4, 1), DataType::UInt32),
    (number("u8", 8, 1), DataType::UInt64),
    (number("f2", 2, 2), DataType::Float16),
    (number("f4", 4, 2), DataType::Float32),
    (number("f8", 8, 2), DataType::Float64),
];

/// A boolean of NumPy, which is one byte. Arrow packs booleans into bits.
pub(crate) const BOOLEAN: Number = number("b1", 1, 6);

const fn number(name: &'static str, bytes: usize, code: u8) -> Number {
    Number { name, bytes, code }
}

impl Number {
    /// The type of numbers that an Arrow type has. `None` if it has no numbers.
    pub(crate) fn of(dtype: &DataType) -> Option<Self> {
        NUMBERS.iter().find(|(_, arrow)| arrow == dtype).map(|(number, _)| *number)
    }

    /// The type of numbers that a `typestr` of NumPy names, such as `<f4`, with its Arrow type.
    pub(crate) fn named(typestr: &str) -> Option<(Self, DataType)> {
        let name = typestr.strip_prefix(NATIVE).or_else(|| typestr.strip_prefix('|'))?;
        if name == BOOLEAN.name {
            return Some((BOOLEAN, DataType::Boolean));
        }
        NUMBERS.iter().find(|(number, _)| number.name == name).cloned()
    }

    fn typestr(self) -> String {
        let order = if self.bytes == 1 { '|' } else { NATIVE };
        format!("{order}{}", self.name)
    }
}

const NATIVE: char = if cfg!(target_endian = "little") { '<' } else { '>' };

/// Numbers in C order, which Python may only read.
#[pyclass(frozen, module = "rolldock._rolldock")]
pub(crate) struct Buffer {
    memory: Memory,
    number: Number,
    shape: Vec<usize>,
}

impl Buffer {
    /// `memory` must have as many bytes as `shape` and `number` need.
    pub(crate) fn new(memory: Memory, number: Number, shape: Vec<usize>) -> PyResult<Self> {
        let items = shape.iter().product::<usize>();
        if memory.len() != items * number.bytes {
            let reason =
                format!("expected {items} items of {} bytes, found bytes={}", number.bytes, memory.len());
            return Err(PyBufferError::new_err(reason));
        }
        Ok(Self { memory, number, shape })
    }

    /// Unpacks bits to one byte each.
    pub(crate) fn of_bits(bits: impl Iterator<Item = bool>, shape: Vec<usize>) -> PyResult<Self> {
        let bytes: Vec<u8> = bits.map(u8::from).collect();
        Self::new(bytes.into(), BOOLEAN, shape)
    }

    pub(crate) fn of_u64(numbers: Vec<u64>) -> PyResult<Self> {
        let (rows, number) = (numbers.len(), number("u8", 8, 1));
        Self::new(Memory::from_vec(numbers), number, vec![rows])
    }
}

#[pymethods]
impl Buffer {
    /// The address of the first byte.
    #[getter]
    fn address(&self) -> usize {
        self.memory.as_ptr().addr()
    }

    #[getter]
    fn nbytes(&self) -> usize {
        self.memory.len()
    }

    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let interface = PyDict::new(py);
        interface.set_item("shape", PyTuple::new(py, &self.shape)?)?;
        interface.set_item("typestr", self.number.typestr())?;
        let is_read_only = true;
        interface.set_item("data", (self.address(), is_read_only))?;
        interface.set_item("version", 3)?;
        Ok(interface)
    }

    /// A capsule for `from_dlpack`. Consumers share the memory and must not write to it, except with `copy=True`.
    #[pyo3(signature = (*, copy = None, **_options))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        copy: Option<bool>,
        _options: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let is_copied = copy == Some(true);
        let memory = if is_copied { Memory::from_slice_ref(&self.memory) } else { self.memory.clone() };
        dlpack_capsule(py, Exported::new(self, memory))
    }

    /// The device of the memory: the CPU.
    fn __dlpack_device__(&self) -> (i32, i32) {
        (CPU, 0)
    }
}

/// The number by which DLPack names the CPU.
const CPU: i32 = 1;
const UNUSED: &CStr = c"dltensor";

#[repr(C)]
struct Device {
    kind: i32,
    id: i32,
}

#[repr(C)]
struct NumberKind {
    code: u8,
    bits: u8,
    lanes: u16,
}

/// `DLTensor`.
#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device: Device,
    ndim: i32,
    dtype: NumberKind,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

/// `DLManagedTensor`. The consumer calls `deleter` when it does not need the memory any more.
#[repr(C)]
struct Managed {
    tensor: Tensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
}

/// The memory that a consumer of DLPack keeps alive.
#[repr(C)]
struct Exported {
    /// This is the first field, so a pointer to it is a pointer to the whole struct.
    managed: Managed,
    shape: Vec<i64>,
    _memory: Memory,
}

impl Exported {
    /// `memory` is that of `buffer`, or a copy.
    fn new(buffer: &Buffer, memory: Memory) -> Box<Self> {
        let shape: Vec<i64> = buffer.shape.iter().map(|length| *length as i64).collect();
        let tensor = Tensor {
            data: memory.as_ptr().cast_mut().cast(),
            device: Device { kind: CPU, id: 0 },
            ndim: shape.len() as i32,
            dtype: NumberKind { code: buffer.number.code, bits: (buffer.number.bytes * 8) as u8, lanes: 1 },
            shape: ptr::null_mut(),
            strides: ptr::null_mut(),
            byte_offset: 0,
        };
        let managed = Managed { tensor, context: ptr::null_mut(), deleter: Some(delete) };
        let mut exported = Box::new(Self { managed, shape, _memory: memory });
        exported.managed.tensor.shape = exported.shape.as_mut_ptr();
        exported
    }
}

/// # Safety
/// `managed` comes from [`dlpack_capsule`] and was not deleted before.
#[expect(unsafe_code, reason = "DLPack gives memory back through a C function")]
unsafe extern "C" fn delete(managed: *mut Managed) {
    // SAFETY: the pointer is that of a boxed `Exported`, whose first field is `managed`, and is used once.
    drop(unsafe { Box::from_raw(managed.cast::<Exported>()) });
}

/// Frees a tensor that no consumer has taken out of its capsule. A consumer renames the capsule.
///
/// # Safety
/// `capsule` comes from [`dlpack_capsule`].
#[expect(unsafe_code, reason = "a destructor of a capsule is a C function")]
unsafe extern "C" fn drop_capsule(capsule: *mut ffi::PyObject) {
    // SAFETY: the interpreter calls this with the capsule and the GIL.
    let managed = unsafe {
        match ffi::PyCapsule_IsValid(capsule, UNUSED.as_ptr()) {
            1 => ffi::PyCapsule_GetPointer(capsule, UNUSED.as_ptr()),
            _ => return,
        }
    };
    if !managed.is_null() {
        // SAFETY: the capsule has this name as long as no consumer has taken the tensor.
        unsafe { delete(managed.cast()) }
    }
}

#[expect(unsafe_code, reason = "a capsule with a C destructor")]
fn dlpack_capsule(py: Python<'_>, exported: Box<Exported>) -> PyResult<Bound<'_, PyAny>> {
    let managed = Box::into_raw(exported);
    // SAFETY: the pointer is not null and lives until `delete` frees it; the name is static.
    unsafe {
        let capsule = ffi::PyCapsule_New(managed.cast(), UNUSED.as_ptr(), Some(drop_capsule));
        Bound::from_owned_ptr_or_err(py, capsule).inspect_err(|_| delete(managed.cast()))
    }
}
