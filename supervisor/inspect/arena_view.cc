#include "supervisor/inspect/arena_view.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/arena/arena.h"
#include "lib/arena/text_field.h"
#include "lib/base/status.h"
#include "lib/base/utf8.h"
#include "supervisor/inspect/descriptions.h"

namespace baton::inspect {
namespace {

absl::Status CheckHeader(const arena::DriverMemoryHeader& header) {
  if (header.magic != arena::kMagic) {
    return absl::FailedPreconditionError("the driver log memory is not Baton's: its magic is not");
  }
  if (header.oldest_reader == 0) {
    return absl::FailedPreconditionError("the arena is not ready: its keeper is making it");
  }
  const uint32_t version = std::max(header.layout_version, header.oldest_reader);
  if (header.oldest_reader > arena::kLayoutVersion || version < arena::kOldestLayoutVersion) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the arena has layout version ", version, ", readable from version ", header.oldest_reader,
        "; this baton reads versions ", arena::kOldestLayoutVersion, " to ", arena::kLayoutVersion,
        ": use the one that was installed with that batond"));
  }
  absl::Status shape = arena::ValidateShape(header.shape);
  if (shape.ok()) return shape;
  return absl::FailedPreconditionError(
      absl::StrCat("the arena's shape is not possible: ", shape.message()));
}

absl::Status CheckSize(const Memory& memory, uint64_t needed) {
  if (!memory.exists() || memory.size() >= needed) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("the ", memory.name(), " has ", memory.size(),
                                                    " bytes, its header asks for ", needed));
}

std::string NameOf(const arena::DriverMemoryHeader& header) {
  return ValidUtf8(arena::TextOf(header.service), sizeof(header.service));
}

void DescribeShape(const arena::Shape& shape, v1::InspectedShape* out) {
  out->set_shards(shape.shards);
  out->set_connections(shape.connections);
  out->set_send_queue_depth(shape.send_queue_depth);
  out->set_receive_queue_depth(arena::ReceiveDepth(shape));
  out->set_shared_receive_queue_depth(shape.shared_receive_queue_depth);
  out->set_completion_log_entries(shape.completion_log_entries);
  out->set_connection_state_bytes(shape.connection_state_bytes);
  out->set_shard_state_bytes(shape.shard_state_bytes);
  out->set_workers(shape.workers);
  out->set_buffer_bytes(arena::HeapOffset(shape, 0));
  out->set_max_inline_bytes(shape.max_inline_bytes);
  out->set_pooled_queue_pairs(shape.pooled_queue_pairs);
  out->set_shard_heap_bytes(arena::HeapBytes(shape));
}

void DescribeSource(const ArenaFiles& files, v1::InspectionSource* out) {
  out->set_kind(files.file.empty() ? "process" : "file");
  out->set_pid(files.pid);
  out->set_program(ValidUtf8(files.program, 64));
  out->set_file(ValidUtf8(files.file, 4096));
  out->set_saved_unix_micros(files.saved_unix_micros);
  out->set_release(ValidUtf8(files.release, 64));
  out->set_decoder(ValidUtf8(files.decoder, 4096));
  out->set_buffers(files.buffers().exists());
}

void DescribeArena(const ArenaView& arena, uint64_t now_ns, v1::Inspection* out) {
  out->set_service(arena.service);
  DescribeSource(arena.files, out->mutable_source());
  out->set_layout_version(arena.layout_version);
  out->set_oldest_reader(arena.header.oldest_reader);
  out->set_native(arena.native());
  if (arena.header.created_ns <= now_ns) {
    out->set_age_seconds(static_cast<double>(now_ns - arena.header.created_ns) * 1e-9);
  } else {
    out->add_invalid("the arena was made after it was looked at");
  }
  DescribeShape(arena.header.shape, out->mutable_shape());
}

absl::Status CheckSelection(const ArenaView& arena, const Selection& selection) {
  const arena::Shape& shape = arena.header.shape;
  if (selection.shard && *selection.shard >= shape.shards) {
    return absl::NotFoundError(
        absl::StrCat("shard ", *selection.shard, ": the service has ", shape.shards, ", from 0"));
  }
  if (selection.connection && *selection.connection >= shape.connections) {
    return absl::NotFoundError(absl::StrCat("connection ", *selection.connection,
                                            ": the service has room for ", shape.connections,
                                            ", from 0"));
  }
  return absl::OkStatus();
}

}  // namespace

ArenaView::ArenaView(ArenaFiles arena_files, const arena::DriverMemoryHeader& its_header)
    : files(std::move(arena_files)),
      header(its_header),
      worker_map(header.shape),
      driver_map(header.shape),
      recovery_map(header.shape),
      layout_version(std::max(header.layout_version, header.oldest_reader)),
      service(NameOf(header)) {}

absl::StatusOr<ArenaView> ArenaView::Open(ArenaFiles files, const std::string& service) {
  BATON_ASSIGN_OR_RETURN(const auto header, files.driver_log().Read<arena::DriverMemoryHeader>(0));
  BATON_RETURN_IF_ERROR(CheckHeader(header));
  ArenaView arena(std::move(files), header);
  BATON_RETURN_IF_ERROR(CheckSize(arena.files.worker_log(), arena.worker_map.total));
  BATON_RETURN_IF_ERROR(CheckSize(arena.files.driver_log(), arena.driver_map.total));
  // Nothing here reads worker records, which arenas of the release before do not have.
  BATON_RETURN_IF_ERROR(
      CheckSize(arena.files.recovery(),
                std::min(arena.recovery_map.worker_records, arena.recovery_map.total)));
  BATON_RETURN_IF_ERROR(CheckSize(arena.files.buffers(), header.shape.buffer_bytes));
  if (!service.empty() && arena.service != service) {
    return absl::FailedPreconditionError(
        absl::StrCat("the arena is of service \"", arena.service, "\", not of \"", service, "\""));
  }
  return arena;
}

absl::StatusOr<v1::Inspection> Inspect(const ArenaView& arena, const Selection& selection,
                                       uint64_t now_ns) {
  BATON_RETURN_IF_ERROR(CheckSelection(arena, selection));
  v1::Inspection out;
  DescribeArena(arena, now_ns, &out);
  BATON_RETURN_IF_ERROR(DescribeShards(arena, selection, &out));
  if (!selection.connection) BATON_RETURN_IF_ERROR(DescribeWorkers(arena, &out));
  if (selection.connections || selection.connection) {
    BATON_RETURN_IF_ERROR(DescribeConnections(arena, selection, &out));
  }
  return out;
}

}  // namespace baton::inspect
