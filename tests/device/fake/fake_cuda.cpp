// CUDA devices whose memory is the host's, for tests on machines without a GPU.
//
// Every operator on a CUDA tensor is checked as a GPU checks it, and then run by the CPU's kernel on tensors that share
// the memory of its operands. So `x.is_cuda`, kernels registered for CUDA and autograd's device threads are those of a
// GPU. Counted are the operations for which a host waits: copies to it, and results whose shape depends on values.
//
// Reading order: the order of streams, memory, crossing (device tensors as host tensors, and back), graphs, examine (a
// GPU's refusals and waits), run_on_host (the fallback of all operators), streams and events, hooks.

#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/extension.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <set>

using at::Tensor;
using c10::DeviceIndex;
using c10::DispatchKey;
using c10::IValue;

constexpr auto CUDA = c10::DeviceType::CUDA;
constexpr int MOST_DEVICES = 64;
static std::atomic<int> devices{8};
static thread_local DeviceIndex current_device = 0;

// ---------------------------------------------------------------------------------------------------- what is counted

static std::mutex lock;
static PyObject* listener = nullptr;  // called with a word for each wait of the host
static thread_local int quiet = 0;

struct Graph;
static std::shared_ptr<Graph> capture;  // the graph that is captured now

static void report(const std::string& wait) {
  TORCH_CHECK(!capture || wait.ends_with("pinned"), "CUDA error: operation not permitted when stream is capturing (", wait, ")");
  if (quiet || !listener) return;
  py::gil_scoped_acquire gil;
  auto answer = py::reinterpret_steal<py::object>(PyObject_CallFunction(listener, "s", wait.c_str()));
  if (!answer) throw py::error_already_set();
}

// ------------------------------------------------------------------------------------------------ the order of streams
//
// Work is done when it is issued, but a GPU promises no order between streams. So every piece of work has a number, its
// tick, and a stream knows of each other stream the last tick that it has waited for. Work that touches memory which
// another stream wrote, or writes memory which another stream reads, must know that stream's tick: anything else is a
// race, and an error. Parts of a tensor that share no byte are memory of
// their own. Pinned memory of the host is such memory too where it is copied; what the host itself reads or
// writes there is not seen.

using Key = int64_t;  // a stream of a device
using Ticks = std::map<Key, uint64_t>;

struct Access {
  size_t begin, end;  // the bytes from the first element to the last
  Key stream;
  uint64_t tick;
  bool writes;
};

struct Memory {
  Key owner = 0;  // the stream that was current when it was handed out, to which it returns
  std::vector<Access> accesses;  // those that no later one follows
  std::set<Key> recorded;  // by record_stream: it is not handed out again before these are done with it
};

static thread_local c10::StreamId current_stream[MOST_DEVICES] = {};
static std::mutex order;
static std::map<Key, Ticks> known;
static Ticks known_by_host;
static std::map<const void*, Memory> memories;
static std::map<Key, std::vector<Memory>> free_memories;

static Key key_of(DeviceIndex index, c10::StreamId id) { return (Key(index) << 32) | id; }
static Key current_key(DeviceIndex index) { return key_of(index, current_stream[index]); }
static void merge(Ticks& into, const Ticks& other) {
  for (auto [stream, tick] : other) into[stream] = std::max(into[stream], tick);
}

static void require_done(const Ticks& ticks, Key own, const Access& other, const std::string& what, const char* did) {
  auto found = ticks.find(other.stream);
  TORCH_CHECK(own == other.stream || (found != ticks.end() && other.tick <= found->second), "race: ", what, " on stream ",
              own & 0xffffffff, " does not wait for stream ", other.stream & 0xffffffff, ", which ", did);
}

static void hand_out(const void* data, DeviceIndex index) {
  std::lock_guard<std::mutex> held(order);
  auto own = current_key(index);
  auto& ticks = known[own];
  merge(ticks, known_by_host);
  auto free = std::move(free_memories[own]);
  free_memories.erase(own);
  for (auto& memory : free)
    for (auto& access : memory.accesses)
      if (!memory.recorded.count(access.stream))
        require_done(ticks, own, access, "memory that is handed out again", "may still use it, unknown to record_stream");
  memories[data] = Memory{own};
}

static void take_back(const void* data) {
  std::lock_guard<std::mutex> held(order);
  auto found = memories.find(data);
  if (found == memories.end()) return;
  free_memories[found->second.owner].push_back(std::move(found->second));
  memories.erase(found);
}

struct Place {
  const void* memory;
  size_t begin = 0, end = SIZE_MAX;
};
using Places = std::vector<Place>;

static bool is_captured(Key stream);

static void launch(const std::string& name, DeviceIndex index, const Places& read, const Places& written) {
  std::lock_guard<std::mutex> held(order);
  auto own = current_key(index);
  TORCH_CHECK(!capture || is_captured(own), name, " on stream ", own & 0xffffffff, " is no part of the graph that is captured");
  auto& ticks = known[own];
  merge(ticks, known_by_host);
  auto now = ++ticks[own];
  auto touch = [&](const Place& place, bool writes) {
    auto found = memories.find(place.memory);
    if (found == memories.end() || place.begin == place.end) return;
    auto& accesses = found->second.accesses;
    for (auto& other : accesses)
      if (other.begin < place.end && place.begin < other.end && (writes || other.writes))
        require_done(ticks, own, other, name, other.writes ? "writes the same memory" : "reads the same memory");
    std::erase_if(accesses, [&](const Access& other) {
      return place.begin <= other.begin && other.end <= place.end && (writes || (!other.writes && other.stream == own));
    });
    accesses.push_back({place.begin, place.end, own, now, writes});
  };
  for (auto& place : read) touch(place, false);
  for (auto& place : written) touch(place, true);
}

// The current streams of two devices wait for each other, as they do before and after a copy from one to the other.
static void meet(DeviceIndex one, DeviceIndex other) {
  std::lock_guard<std::mutex> held(order);
  auto& ticks = known[current_key(one)];
  merge(ticks, known[current_key(other)]);
  merge(known[current_key(other)], ticks);
}

// The host has waited for the current stream.
static void host_waited(DeviceIndex index) {
  std::lock_guard<std::mutex> held(order);
  merge(known_by_host, known[current_key(index)]);
}

// ------------------------------------------------------------------------------------------------------------- memory
//
// A storage of the device holds the host's storage whose bytes it shows; one of the host, while a kernel runs, holds the
// device's.

static std::atomic<int64_t> allocated[MOST_DEVICES], peak[MOST_DEVICES];
static std::atomic<int64_t> limit{int64_t(1) << 34};

struct Kept {
  c10::Storage other;
  int64_t bytes;
  DeviceIndex index;
};

static void release(void* context) {
  auto* kept = static_cast<Kept*>(context);
  if (kept->bytes) {
    take_back(kept->other.data());
    allocated[kept->index] -= kept->bytes;
  }
  delete kept;
}

static void charge(DeviceIndex index, int64_t bytes) {
  auto now = allocated[index] += bytes;
  if (now > limit) {
    allocated[index] -= bytes;
    TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. Tried to allocate ", bytes, " bytes. GPU ", int(index),
                     " has a total capacity of ", limit.load(), " bytes of which ", limit - (now - bytes), " bytes are free.");
  }
  for (auto before = peak[index].load(); before < now && !peak[index].compare_exchange_weak(before, now);) {}
}

static c10::DataPtr shown_on_device(const c10::Storage& host, DeviceIndex index) {
  auto bytes = static_cast<int64_t>(host.nbytes());
  charge(index, bytes);
  if (bytes) hand_out(host.data(), index);
  return {const_cast<void*>(host.data()), new Kept{host, bytes, index}, &release, c10::Device(CUDA, index)};
}

// Only storages that grow ask for memory in this way: all others are those of the host's tensors.
struct DeviceAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    c10::Storage host(c10::Storage::use_byte_size_t{}, bytes, c10::GetAllocator(c10::kCPU), true);
    return shown_on_device(host, current_device);
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { std::memcpy(to, from, bytes); }
};
static DeviceAllocator device_allocator;

static void keep_for_graph(const c10::Storage& made);

static c10::Storage device_storage(const c10::Storage& host, DeviceIndex index) {
  c10::Storage made(c10::Storage::use_byte_size_t{}, host.nbytes(), shown_on_device(host, index), &device_allocator, true);
  if (capture) keep_for_graph(made);
  return made;
}

static c10::Storage host_storage(const c10::Storage& device) {
  c10::DataPtr data{const_cast<void*>(device.data()), new Kept{device, 0, 0}, &release, c10::Device(c10::kCPU)};
  return {c10::Storage::use_byte_size_t{}, device.nbytes(), std::move(data), c10::GetAllocator(c10::kCPU), true};
}

// ----------------------------------------------------------------------------------------------------------- crossing

static bool on_device(const Tensor& x) { return x.defined() && x.is_cuda(); }
static bool is_csr(const Tensor& x) { return x.defined() && x.layout() == c10::kSparseCsr; }
static at::SparseCsrTensorImpl* csr(const Tensor& x) {
  return static_cast<at::SparseCsrTensorImpl*>(x.unsafeGetTensorImpl());
}

static Tensor view_of(c10::Storage storage, DispatchKey key, const Tensor& like) {
  auto made = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), like.dtype());
  made.unsafeGetTensorImpl()->set_storage_offset(like.storage_offset());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides());
  return made;
}

static Tensor csr_of(DispatchKey key, c10::Device device, Tensor rowptr, Tensor col, Tensor val, c10::IntArrayRef sizes) {
  auto made = at::detail::make_tensor<at::SparseCsrTensorImpl>(c10::DispatchKeySet(key), device, c10::kSparseCsr, val.dtype());
  csr(made)->set_member_tensors(rowptr, col, val, sizes);
  return made;
}

// The operands of one call as tensors of the host, and its results as tensors of the device. Tensors that share a storage
// on one side share one on the other, so that views stay views.
struct Crossing {
  DeviceIndex index = current_device;
  std::vector<std::pair<c10::Storage, c10::Storage>> storages;  // on the device, on the host
  std::vector<std::pair<Tensor, Tensor>> tensors;

  c10::Storage host(const c10::Storage& device) {
    for (auto& [theirs, ours] : storages)
      if (theirs.unsafeGetStorageImpl() == device.unsafeGetStorageImpl()) return ours;
    return storages.emplace_back(device, host_storage(device)).second;
  }
  c10::Storage device(const c10::Storage& host) {
    for (auto& [theirs, ours] : storages)
      if (ours.unsafeGetStorageImpl() == host.unsafeGetStorageImpl()) return theirs;
    return storages.emplace_back(device_storage(host, index), host).first;
  }
  Tensor in(const Tensor& x) {
    if (!on_device(x)) return x;
    index = x.device().index();
    for (auto& [theirs, ours] : tensors)
      if (theirs.is_same(x)) return ours;
    auto here = is_csr(x) ? csr_of(DispatchKey::SparseCsrCPU, c10::kCPU, in(csr(x)->compressed_indices()),
                                   in(csr(x)->plain_indices()), in(csr(x)->values()), x.sizes())
                          : view_of(host(x.storage()), DispatchKey::CPU, x);
    return tensors.emplace_back(x, here).second;
  }
  Tensor out(const Tensor& x) {
    if (!x.defined() || on_device(x)) return x;
    for (auto& [theirs, ours] : tensors)
      if (ours.is_same(x)) return theirs;
    if (is_csr(x))
      return csr_of(DispatchKey::SparseCsrCUDA, c10::Device(CUDA, index), out(csr(x)->compressed_indices()),
                    out(csr(x)->plain_indices()), out(csr(x)->values()), x.sizes());
    return view_of(device(x.storage()), DispatchKey::CUDA, x);
  }
  // Operands that the kernel resized, or whose storage it replaced.
  void settle() {
    for (auto& [theirs, ours] : tensors) {
      if (is_csr(theirs)) continue;
      auto* impl = theirs.unsafeGetTensorImpl();
      auto storage = device(ours.storage());
      if (storage.unsafeGetStorageImpl() != theirs.storage().unsafeGetStorageImpl()) impl->set_storage_keep_dtype(storage);
      if (ours.sizes() != theirs.sizes() || ours.strides() != theirs.strides())
        impl->set_sizes_and_strides(ours.sizes(), ours.strides());
      if (ours.storage_offset() != theirs.storage_offset()) impl->set_storage_offset(ours.storage_offset());
    }
    for (auto& [theirs, ours] : storages)
      if (ours.data() != theirs.data() || ours.nbytes() != theirs.nbytes()) {
        theirs.set_data_ptr_noswap(shown_on_device(ours, index));
        theirs.set_nbytes(ours.nbytes());
      }
  }
};

static Place place_of(const Tensor& x) {
  int64_t last = 0;
  for (auto axis = 0; axis < x.dim(); ++axis) last += (x.size(axis) - 1) * x.stride(axis);
  const size_t begin = x.storage_offset() * x.itemsize();
  return {x.storage().data(), begin, x.numel() ? begin + (last + 1) * x.itemsize() : begin};
}

// The memory of a tensor on a device.
static void add_places(const Tensor& x, Places& places) {
  if (!on_device(x)) return;
  if (is_csr(x))
    for (auto& part : {csr(x)->compressed_indices(), csr(x)->plain_indices(), csr(x)->values()}) add_places(part, places);
  else
    places.push_back(place_of(x));
}

template <class F>
static IValue each_tensor(const IValue& value, F f) {
  if (value.isTensor()) return f(value.toTensor());
  if (value.isTensorList()) {
    c10::List<Tensor> made;
    for (Tensor x : value.toTensorVector()) made.push_back(f(x));
    return made;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<Tensor>> made;
    for (auto x : value.toOptionalTensorVector()) made.push_back(x ? std::optional<Tensor>(f(*x)) : x);
    return made;
  }
  return value;
}

// ------------------------------------------------------------------------------------------------------------- graphs
//
// A graph is a list of operators with their operands. Nothing of it has run when the capture ends: operators do run while
// they are captured, for the shapes of their results alone, and afterwards memory that was there before has its old bytes
// and that of the graph is ones, which are NaN. What the graph allocates stays at its address as long as the graph does; all
// other memory has to be kept by whoever owns it. Numbers of the host are those of the capture.
//
// A GPU may give the memory of a graph to several of its tensors, one after the other, so whatever was written there
// before a replay may be overwritten by it. Here a replay begins with ones in all of that memory.
//
// A capture has one stream, and those that wait for its events. Work on any other stream is an error meanwhile; so is a wait
// of the host, and the end of the capture while a stream has work that the first one does not wait for.

struct Graph {
  Key origin = 0;
  std::set<Key> streams;
  std::map<c10::StorageImpl*, c10::Storage> own;
  std::map<c10::StorageImpl*, std::pair<c10::Storage, std::string>> before;  // memory that was there, and its bytes
  std::vector<std::function<void()>> nodes;

  void forget() const {
    for (auto& [_, storage] : own)
      if (storage.nbytes()) std::memset(storage.mutable_data(), 0xFF, storage.nbytes());
  }
};

static bool is_captured(Key stream) { return capture && capture->streams.count(stream); }
static void keep_for_graph(const c10::Storage& made) { capture->own.emplace(made.unsafeGetStorageImpl(), made); }

// A tensor that a graph will write: its bytes return when the capture ends.
static void will_write(const Tensor& x) {
  if (!capture || !x.defined() || is_csr(x)) return;
  auto storage = x.storage();
  if (capture->own.count(storage.unsafeGetStorageImpl()) || capture->before.count(storage.unsafeGetStorageImpl())) return;
  std::string bytes(static_cast<const char*>(storage.data()), storage.nbytes());
  capture->before.emplace(storage.unsafeGetStorageImpl(), std::pair{storage, std::move(bytes)});
}

// A tensor of a graph, without its memory unless that is the graph's own. A number of the host is a constant.
struct Held {
  Tensor constant;
  c10::Storage own;
  std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> others;
  std::vector<Held> parts;
  std::vector<int64_t> sizes, strides;
  int64_t offset = 0;
  c10::ScalarType type = c10::kFloat;
  c10::Device device{c10::kCPU};

  explicit Held(const Tensor& x) {
    if (!x.defined() || (!on_device(x) && !x.is_pinned())) {
      if (x.defined()) constant = x.clone();
      return;
    }
    device = x.device(), type = x.scalar_type(), sizes = x.sizes().vec();
    if (is_csr(x)) {
      for (auto& part : {csr(x)->compressed_indices(), csr(x)->plain_indices(), csr(x)->values()}) parts.emplace_back(part);
      return;
    }
    strides = x.strides().vec(), offset = x.storage_offset();
    auto found = capture->own.find(x.storage().unsafeGetStorageImpl());
    if (found != capture->own.end()) own = found->second;
    else others = x.storage().getWeakStorageImpl();
  }
  c10::Storage storage() const {
    if (own) return own;
    auto alive = others->lock();
    TORCH_CHECK(alive, "a graph uses memory that was freed after its capture: shape ", sizes, ", type ", type);
    return c10::Storage(alive);
  }
  Tensor tensor() const {
    if (!own && !others && parts.empty()) return constant;
    if (!parts.empty())
      return csr_of(DispatchKey::SparseCsrCUDA, device, parts[0].tensor(), parts[1].tensor(), parts[2].tensor(), sizes);
    auto keys = c10::DispatchKeySet(device.is_cuda() ? DispatchKey::CUDA : DispatchKey::CPU);
    auto made = at::detail::make_tensor<c10::TensorImpl>(storage(), keys, c10::scalarTypeToTypeMeta(type));
    made.unsafeGetTensorImpl()->set_storage_offset(offset);
    made.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
    return made;
  }
  // The bytes of a result, into the memory that it had when it was captured; a view of an operand has them already.
  void receive(const Tensor& made, Places& places) const {
    if (is_csr(made)) {
      parts[0].receive(csr(made)->compressed_indices(), places);
      parts[1].receive(csr(made)->plain_indices(), places);
      parts[2].receive(csr(made)->values(), places);
    } else if (own && made.defined() && made.storage().data() != own.data()) {
      TORCH_CHECK(made.sizes() == c10::IntArrayRef(sizes) && made.storage().nbytes() == own.nbytes(), "a result has another shape");
      std::memcpy(own.mutable_data(), made.storage().data(), own.nbytes());
      places.push_back({own.data()});
    }
  }
};

static std::shared_ptr<Graph> begin_capture() {
  TORCH_CHECK(!capture, "a graph is being captured already");
  auto origin = current_key(current_device);
  TORCH_CHECK(current_stream[current_device], "CUDA graphs must be captured on a non-default stream.");
  capture = std::make_shared<Graph>();
  capture->origin = origin;
  capture->streams = {origin};
  return capture;
}

static void end_capture() {
  auto graph = std::move(capture);
  capture = nullptr;
  for (auto& [_, kept] : graph->before) std::memcpy(kept.first.mutable_data(), kept.second.data(), kept.second.size());
  graph->forget();
  graph->before.clear();
  std::lock_guard<std::mutex> held(order);
  bool joined = true;
  for (auto stream : graph->streams) joined &= known[graph->origin][stream] >= known[stream][stream];
  for (auto& [_, ticks] : known) merge(known_by_host, ticks);  // none of this work was done
  TORCH_CHECK(joined, "CUDA error: capturing stream has unjoined work");
}

// ------------------------------------------------------------------------------------------------------------ examine

using Names = std::set<std::string>;
static const Names COPIES{"aten::copy_", "aten::_copy_from", "aten::_copy_from_and_resize"};
// The shape of the result, or a number that the host reads, depends on values.
static const Names WAITING{"aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::_unique2",
                           "aten::unique_dim", "aten::unique_consecutive", "aten::unique_dim_consecutive", "aten::equal",
                           "aten::bincount"};
// A tensor of one number may be the host's in elementwise operations, and in none of these.
static const Names NO_HOST_SCALARS{"aten::mm", "aten::addmm", "aten::bmm", "aten::cat", "aten::gather", "aten::index_select",
                                   "aten::index_add", "aten::index_add_", "aten::scatter", "aten::scatter_",
                                   "aten::scatter_add_", "aten::nll_loss_forward", "aten::segment_reduce", "aten::take",
                                   "aten::searchsorted", "aten::bucketize"};
// Indices may be the host's; they are then copied, while the host waits.
static const Names INDEXING{"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"};

static bool is_mask(const Tensor& x) { return x.scalar_type() == c10::kBool || x.scalar_type() == c10::kByte; }

// True if the host waits for the result.
static bool examine(const c10::FunctionSchema& schema, const std::vector<IValue>& args) {
  const auto& name = schema.name();
  const bool copies = COPIES.count(name), indexing = INDEXING.count(name);
  bool masked = false, host_indices = false;
  bool self_on_device = !args.empty() && args[0].isTensor() && on_device(args[0].toTensor());
  std::optional<c10::Device> device;
  for (size_t i = 0; i < args.size(); ++i) {
    const auto& said = schema.arguments()[i];
    const bool written = said.alias_info() && said.alias_info()->isWrite();
    const bool index = indexing && said.name() == "indices";
    each_tensor(args[i], [&](const Tensor& x) {
      if (!x.defined() || copies) return x;
      if (index) masked |= is_mask(x);
      const bool scalar = x.dim() == 0 && !written && !NO_HOST_SCALARS.count(name);
      if (x.is_cpu() && index && self_on_device) host_indices = true;
      if (x.is_cpu() && ((index && self_on_device) || scalar)) return x;
      if (!device) device = x.device();
      TORCH_CHECK(*device == x.device(), "Expected all tensors to be on the same device, but found at least two devices, ",
                  *device, " and ", x.device(), "! (when checking argument '", said.name(), "' of ", schema.operator_name(), ")");
      return x;
    });
  }
  if (host_indices) report("host to device, indices");
  bool waits = WAITING.count(name);  // aten::index with a mask asks for aten::nonzero itself
  if (name == "aten::repeat_interleave" && schema.overload_name() == "Tensor") waits = args[1].isNone();
  if (name == "aten::_index_put_impl_" || name == "aten::index_put_") {
    const auto& value = args[2].toTensor();
    waits = masked && value.numel() != 1;
    if (self_on_device && value.is_cpu() && !masked) report("host to device, number");  // at a mask it is a kernel's operand
  }
  if (waits) report(name.substr(6));
  return waits;
}

// ------------------------------------------------------------------------------------------- the fallback of operators

static void run_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack);

// An operator with its operands, whose tensors are filled in when it runs.
struct Node {
  c10::OperatorHandle op;
  std::vector<IValue> args;
  std::vector<Held> operands, results;

  Node(const c10::OperatorHandle& op, const std::vector<IValue>& given) : op(op) {
    for (size_t i = 0; i < given.size(); ++i) {
      const auto* alias = op.schema().arguments()[i].alias_info();
      args.push_back(each_tensor(given[i], [&](const Tensor& x) {
        if (alias && alias->isWrite()) will_write(x);
        operands.emplace_back(x);
        return Tensor();
      }));
    }
  }
  void run() const {
    torch::jit::Stack stack;
    size_t next = 0;
    for (auto& arg : args) stack.push_back(each_tensor(arg, [&](const Tensor&) { return operands[next++].tensor(); }));
    run_on_host(op, &stack);
    Places written;
    next = 0;
    for (auto& result : stack) each_tensor(result, [&](const Tensor& x) { return results[next++].receive(x, written), x; });
    if (!written.empty()) launch(op.schema().name(), current_device, {}, written);
  }
};

static void run_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const auto taken = schema.arguments().size(), given = schema.returns().size();
  std::vector<IValue> args(stack->end() - taken, stack->end());
  const bool waits = examine(schema, args);
  const bool kernel = schema.name().rfind("aten::empty", 0) != 0;  // memory alone is handed out by no kernel
  auto node = capture && kernel ? std::make_shared<Node>(op, args) : nullptr;
  Crossing crossing;
  Places read, written;
  bool sparse = false, result_on_device = false;
  for (size_t i = 0; i < args.size(); ++i) {
    auto& arg = args[i];
    const auto* alias = schema.arguments()[i].alias_info();
    arg = each_tensor(arg, [&](const Tensor& x) {
      if (!alias || alias->isWrite()) add_places(x, alias ? written : read);  // of a view nothing is touched
      result_on_device |= on_device(x);
      sparse |= is_csr(x);
      return crossing.in(x);
    });
    if (arg.isDevice()) {
      auto device = arg.toDevice();
      result_on_device = device.type() == CUDA;
      if (result_on_device && device.has_index()) crossing.index = device.index();
      arg = IValue(c10::Device(c10::kCPU));
    }
  }
  torch::jit::drop(*stack, taken);
  stack->insert(stack->end(), args.begin(), args.end());
  const auto before = crossing.storages.size();
  op.redispatchBoxed(c10::DispatchKeySet(sparse ? DispatchKey::SparseCsrCPU : DispatchKey::CPU), stack);
  for (auto it = stack->end() - given; it != stack->end(); ++it)
    *it = each_tensor(*it, [&](const Tensor& x) { return result_on_device ? crossing.out(x) : x; });
  crossing.settle();
  for (auto i = before; i < crossing.storages.size(); ++i) written.push_back({crossing.storages[i].first.data()});
  launch(schema.name(), crossing.index, read, written);
  if (waits) host_waited(crossing.index);
  if (!node) return;
  for (auto it = stack->end() - given; it != stack->end(); ++it)
    each_tensor(*it, [&](const Tensor& x) { return node->results.emplace_back(x), x; });
  capture->nodes.push_back([node] { node->run(); });
}

static Tensor& copy_(Tensor& self, const Tensor& src, bool non_blocking) {
  const bool leaves = !on_device(self), arrives = !on_device(src);
  const bool queued = non_blocking && (leaves ? self : src).is_pinned();
  if (leaves) report(queued ? "device to host, pinned" : "device to host");
  else if (arrives && !src._is_zerotensor() && src.numel() > 0)
    report(queued ? "host to device, pinned" : "host to device");
  if (capture) {
    will_write(self);
    capture->nodes.push_back([to = Held(self), from = Held(src), non_blocking] {
      auto target = to.tensor();
      copy_(target, from.tensor(), non_blocking);
    });
  }
  Crossing crossing;
  at::AutoDispatchBelowADInplaceOrView guard;
  crossing.in(self).copy_(crossing.in(src), non_blocking);
  Places read, written;
  for (auto& [x, places] : {std::pair<const Tensor&, Places&>{src, read}, {self, written}})
    if (on_device(x)) add_places(x, places);
    else if (x.is_pinned()) places.push_back(place_of(x));
  const auto from = (arrives ? self : src).device().index(), to = (leaves ? src : self).device().index();
  meet(from, to);
  launch("aten::copy_", from, read, written);
  meet(from, to);
  if (leaves ? !queued : arrives && !non_blocking) host_waited(from);
  return self;
}

static void record_stream(Tensor& self, c10::Stream stream) {
  Places places;
  add_places(self, places);
  std::lock_guard<std::mutex> held(order);
  for (auto& place : places)
    if (memories.count(place.memory)) memories[place.memory].recorded.insert(key_of(stream.device_index(), stream.id()));
}

static auto fallback() { return torch::CppFunction::makeFromBoxedFunction<&run_on_host>(); }

TORCH_LIBRARY_IMPL(_, CUDA, m) { m.fallback(fallback()); }
TORCH_LIBRARY_IMPL(_, SparseCsrCUDA, m) { m.fallback(fallback()); }
TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("copy_", copy_);
  m.impl("record_stream", record_stream);
}
TORCH_LIBRARY_IMPL(aten, SparseCsrCUDA, m) {  // their general kernels refuse, and come before a fallback
  for (auto name : {"values", "crow_indices", "col_indices", "_nnz"}) m.impl(name, fallback());
}

// -------------------------------------------------------------------------------------------------- streams and events
//
// A stream is a number. An event is a time, and what its stream knew at that time.

static std::atomic<c10::StreamId> last_stream{0};

struct Recorded {
  std::chrono::steady_clock::time_point time;
  Ticks ticks;
  Graph* graph;  // in which it stands for a dependency alone
};

static Ticks ticks_of(DeviceIndex index, c10::StreamId id) {
  std::lock_guard<std::mutex> held(order);
  return known[key_of(index, id)];
}

static void wait_for(DeviceIndex index, c10::StreamId id, const Ticks& ticks) {
  std::lock_guard<std::mutex> held(order);
  merge(known[key_of(index, id)], ticks);
}

static void host_wait_for(const Ticks& ticks) {
  std::lock_guard<std::mutex> held(order);
  merge(known_by_host, ticks);
}

static void host_wait_for_all() {
  std::lock_guard<std::mutex> held(order);
  for (auto& [stream, ticks] : known) merge(known_by_host, ticks);
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  Guard() = default;
  explicit Guard(c10::DeviceType) {}
  c10::DeviceType type() const override { return CUDA; }
  c10::Device exchangeDevice(c10::Device device) const override {
    auto before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override { return {CUDA, current_device}; }
  void setDevice(c10::Device device) const override {
    if (device.has_index()) current_device = device.index();
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override { current_device = device.index(); }
  c10::Stream stream(c10::Device device, c10::StreamId id) const { return c10::Stream(c10::Stream::UNSAFE, device, id); }
  c10::Stream getStream(c10::Device device) const override { return stream(device, current_stream[device.index()]); }
  c10::Stream getDefaultStream(c10::Device device) const override { return stream(device, 0); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override { return stream(device, ++last_stream); }
  c10::Stream getNewStream(c10::Device device, int) const override { return stream(device, ++last_stream); }
  c10::Stream exchangeStream(c10::Stream next) const override {
    auto before = getStream(next.device());
    current_stream[next.device_index()] = next.id();
    return before;
  }
  DeviceIndex deviceCount() const noexcept override { return static_cast<DeviceIndex>(devices.load()); }
  void destroyEvent(void* event, DeviceIndex) const noexcept override { delete static_cast<Recorded*>(event); }
  void record(void** event, const c10::Stream& stream, DeviceIndex, c10::EventFlag) const override {
    if (!*event) *event = new Recorded;
    auto key = key_of(stream.device_index(), stream.id());
    *static_cast<Recorded*>(*event) = {std::chrono::steady_clock::now(), ticks_of(stream.device_index(), stream.id()),
                                       is_captured(key) ? capture.get() : nullptr};
  }
  void block(void* event, const c10::Stream& stream) const override {
    auto* recorded = static_cast<Recorded*>(event);
    auto key = key_of(stream.device_index(), stream.id());
    TORCH_CHECK(!recorded->graph || recorded->graph == capture.get(), "CUDA error: operation not permitted on an event last recorded in a capturing stream");
    TORCH_CHECK(recorded->graph || !is_captured(key), "CUDA error: dependency created on uncaptured work in another stream");
    if (recorded->graph) capture->streams.insert(key);
    wait_for(stream.device_index(), stream.id(), recorded->ticks);
  }
  bool queryEvent(void*) const override { return true; }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream& stream) const override {
    host_wait_for(ticks_of(stream.device_index(), stream.id()));
    report("synchronize stream");
  }
  void synchronizeEvent(void* event) const override {
    host_wait_for(static_cast<Recorded*>(event)->ticks);
    report("synchronize event");
  }
  void synchronizeDevice(DeviceIndex) const override {
    host_wait_for_all();
    report("synchronize device");
  }
  double elapsedTime(void* a, void* b, DeviceIndex) const override {
    for (auto* event : {static_cast<Recorded*>(a), static_cast<Recorded*>(b)})
      TORCH_CHECK(event && !event->graph, "CUDA error: invalid resource handle (an event without a time)");
    auto between = static_cast<Recorded*>(b)->time - static_cast<Recorded*>(a)->time;
    return std::chrono::duration<double, std::milli>(between).count();
  }
};
static c10::impl::DeviceGuardImplRegistrar registrar(CUDA, new Guard);

// --------------------------------------------------------------------------------------------- pinned memory and hooks

static std::set<const void*> pinned;

static void unpin(void* context) {
  auto* storage = static_cast<c10::DataPtr*>(context);
  {
    std::lock_guard<std::mutex> held(lock);
    pinned.erase(storage->get());
  }
  {
    std::lock_guard<std::mutex> held(order);
    memories.erase(storage->get());
  }
  delete storage;
}

struct PinnedAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    if (!bytes) return {nullptr, c10::Device(c10::kCPU)};  // all empty tensors would share the address, and so race
    auto* memory = new c10::DataPtr(c10::GetAllocator(c10::kCPU)->allocate(bytes));
    {
      std::lock_guard<std::mutex> held(lock);
      pinned.insert(memory->get());
    }
    std::lock_guard<std::mutex> held(order);
    memories[memory->get()] = Memory{};
    return {memory->get(), memory, &unpin, c10::Device(c10::kCPU)};
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { std::memcpy(to, from, bytes); }
};
static PinnedAllocator pinned_allocator;

struct Hooks final : at::CUDAHooksInterface {
  explicit Hooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool isAvailable() const override { return true; }
  bool isBuilt() const override { return true; }
  bool hasCUDA() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  std::string showConfig() const override { return "fake CUDA"; }
  int getNumGPUs() const override { return devices; }
  DeviceIndex deviceCount() const override { return static_cast<DeviceIndex>(devices.load()); }
  DeviceIndex current_device() const override { return ::current_device; }
  DeviceIndex getCurrentDevice() const override { return ::current_device; }
  void setCurrentDevice(DeviceIndex index) const override { ::current_device = index; }
  DeviceIndex exchangeDevice(DeviceIndex index) const override { return std::exchange(::current_device, index); }
  DeviceIndex maybeExchangeDevice(DeviceIndex index) const override {
    return index < 0 ? ::current_device : std::exchange(::current_device, index);
  }
  bool isPinnedPtr(const void* memory) const override {
    std::lock_guard<std::mutex> held(lock);
    return pinned.count(memory);
  }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator; }
};
// By now torch has made hooks of its own for a build without CUDA, and keeps them. They have no members, so these take
// their place.
static_assert(sizeof(Hooks) == sizeof(at::CUDAHooksInterface));
static auto* placed = new (const_cast<at::CUDAHooksInterface*>(&at::detail::getCUDAHooks())) Hooks(at::CUDAHooksArgs{});

struct SetAllocator {
  SetAllocator() { c10::SetAllocator(CUDA, &device_allocator); }
} set_allocator;

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("listen", [](py::object f) { listener = f.is_none() ? nullptr : f.release().ptr(); });
  m.def("hush", [](int by) { quiet += by; }, "no waits are reported while the sum is above zero");
  m.def("host", [](const Tensor& x) { return Crossing().in(x); }, "a tensor of the host in the same memory");
  m.def("touch", [](const std::string& what, const std::vector<Tensor>& read, const std::vector<Tensor>& written, bool keep) {
    Places reads, writes;
    for (auto& x : read) add_places(x, reads);
    for (auto& x : written) add_places(x, writes);
    launch(what, current_device, reads, writes);
    std::lock_guard<std::mutex> held(order);
    for (auto& places : {reads, writes})
      for (auto& place : places)
        if (keep && memories.count(place.memory)) memories[place.memory].recorded.insert(current_key(current_device));
  }, "work on the current stream that reads and writes the memory of these tensors, and may keep it until it is done");
  py::class_<Held>(m, "Held").def(py::init<const Tensor&>()).def("tensor", &Held::tensor);
  py::class_<Graph, std::shared_ptr<Graph>>(m, "Graph").def("replay", [](const Graph& graph) {
    graph.forget();
    for (auto& node : graph.nodes) node();
  });
  m.def("begin_capture", begin_capture);
  m.def("end_capture", end_capture);
  m.def("is_capturing", [] { return capture != nullptr; });
  m.def("add_node", [](py::function run) { capture->nodes.push_back([run] { run(); }); }, "a function that a graph calls");
  m.def("will_write", [](const std::vector<Tensor>& xs) { for (auto& x : xs) will_write(x); });
  m.def("device_count", [] { return devices.load(); });
  m.def("set_device_count", [](int count) { devices = std::min(count, MOST_DEVICES); });
  m.def("current_stream", [](int index) { return current_stream[index]; });
  m.def("synchronize", [] { host_wait_for_all(); });
  m.def("current_device", [] { return int(current_device); });
  m.def("set_device", [](int index) { current_device = static_cast<DeviceIndex>(index); });
  m.def("allocated", [](int index) { return allocated[index].load(); });
  m.def("peak", [](int index) { return peak[index].load(); });
  m.def("reset_peak", [](int index) { peak[index] = allocated[index].load(); });
  m.def("limit", [] { return limit.load(); });
  m.def("set_limit", [](int64_t bytes) { limit = bytes; }, "the bytes of every device");
}
