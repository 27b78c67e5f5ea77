#include "supervisor/cli/commands.h"

#include <cctype>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "proto/baton/v1/inspect.pb.h"
#include "supervisor/cli/format.h"

namespace baton {
namespace {

constexpr size_t kBytesPerLine = 16;

// ---------------------------------------------------------------- work requests

std::string FormatRequestBuffers(const v1::InspectedWorkRequest& request) {
  return absl::StrJoin(request.buffers(), " ",
                       [](std::string* text, const v1::InspectedRange& range) {
                         absl::StrAppendFormat(text, "%d+%d", range.offset(), range.length());
                       });
}

// Returns the details that matter for the opcode.
std::string FormatDetails(const v1::InspectedWorkRequest& request) {
  std::vector<std::string> parts(request.flags().begin(), request.flags().end());
  const std::string& opcode = request.opcode();
  if (request.queue() == "send" && !opcode.starts_with("SEND")) {
    parts.push_back(
        absl::StrFormat("remote %#x rkey %#x", request.remote_address(), request.rkey()));
  }
  if (opcode.ends_with("_IMM")) parts.push_back(absl::StrFormat("imm %#x", request.immediate()));
  if (opcode.ends_with("_INV")) {
    parts.push_back(absl::StrFormat("invalidates %#x", request.invalidate_rkey()));
  }
  if (opcode == "FETCH_AND_ADD") parts.push_back(absl::StrCat("adds ", request.compare_add()));
  if (opcode == "COMPARE_AND_SWAP") {
    parts.push_back(
        absl::StrFormat("compares %#x swaps %#x", request.compare_add(), request.swap()));
  }
  if (!request.invalid().empty()) parts.emplace_back("invalid");
  return absl::StrJoin(parts, ", ");
}

void AddRequest(const std::string& owner, const v1::InspectedWorkRequest& request, Table* table) {
  table->Add({owner, request.queue(), absl::StrCat(request.sequence()), request.state(),
              request.opcode(), FormatRequestBuffers(request), absl::StrCat(request.tag()),
              FormatDetails(request)});
}

// ---------------------------------------------------------------- application state

std::string HexLine(std::string_view bytes, size_t offset) {
  std::string hex, text;
  for (size_t i = 0; i < kBytesPerLine; ++i) {
    if (i >= bytes.size()) {
      absl::StrAppend(&hex, "   ");
      continue;
    }
    const auto byte = static_cast<unsigned char>(bytes[i]);
    absl::StrAppendFormat(&hex, "%02x ", byte);
    text.push_back(byte < 0x7f && std::isprint(byte) != 0 ? static_cast<char>(byte) : '.');
  }
  return absl::StrFormat("%08x  %s %s", offset, hex, text);
}

// Replaces lines that repeat the one before by a "*", as hexdump(1) does.
void PrintHex(std::ostream& out, std::string_view bytes) {
  std::string_view last;
  bool starred = false;
  for (size_t at = 0; at < bytes.size(); at += kBytesPerLine) {
    const std::string_view line = bytes.substr(at, kBytesPerLine);
    if (at > 0 && line == last && line.size() == kBytesPerLine) {
      if (!starred) out << "    *\n";
      starred = true;
      continue;
    }
    starred = false;
    last = line;
    out << "    " << HexLine(line, at) << '\n';
  }
}

void PrintSlot(std::ostream& out, const v1::InspectedState& state,
               const v1::InspectedStateSlot& slot) {
  out << "  slot " << slot.slot();
  if (slot.committed()) {
    out << ": committed, version " << state.version() << ", " << state.length() << " bytes\n";
  } else {
    out << ": not committed; what was before, or is being written\n";
  }
  PrintHex(out, slot.content());
  if (slot.left_out() > 0) out << "    " << slot.left_out() << " more bytes\n";
}

void PrintDecoded(std::ostream& out, const v1::InspectedState& state) {
  for (absl::string_view line : absl::StrSplit(absl::StripSuffix(state.decoded(), "\n"), '\n')) {
    out << "    " << Printable(std::string(line)) << '\n';
  }
}

void PrintState(std::ostream& out, const std::string& owner, const v1::InspectedState& state) {
  if (state.slots().empty()) return;
  out << "\nState of " << owner << ":" << (state.changing() ? " (changing)" : "") << '\n';
  if (!state.decoder_error().empty()) {
    out << "  not decoded: " << Printable(state.decoder_error()) << '\n';
  }
  if (!state.decoded().empty()) {
    out << "  version " << state.version() << ", " << state.length() << " bytes:\n";
    return PrintDecoded(out, state);
  }
  for (const v1::InspectedStateSlot& slot : state.slots()) PrintSlot(out, state, slot);
}

void PrintWorkRequests(std::ostream& out, const v1::Inspection& arena) {
  Table table({"OF", "QUEUE", ">SEQUENCE", "STATE", "OPCODE", "BUFFERS", ">TAG", "DETAILS"});
  for (const v1::InspectedShard& shard : arena.shards()) {
    for (const v1::InspectedWorkRequest& request : shard.shared_receives()) {
      AddRequest(absl::StrCat("shard ", shard.index()), request, &table);
    }
  }
  for (const v1::InspectedConnection& one : arena.connections()) {
    for (const v1::InspectedWorkRequest& request : one.work_requests()) {
      AddRequest(absl::StrCat("connection ", one.index()), request, &table);
    }
  }
  if (table.empty()) {
    out << "\nNo work request is outstanding.\n";
    return;
  }
  out << "\nOutstanding work requests:\n";
  table.Print(out);
}

// Prints states as the decoder prints them, or in hexadecimal.
void PrintStates(std::ostream& out, const v1::Inspection& arena) {
  for (const v1::InspectedShard& shard : arena.shards()) {
    PrintState(out, absl::StrCat("shard ", shard.index()), shard.state());
  }
  for (const v1::InspectedConnection& one : arena.connections()) {
    PrintState(out, absl::StrCat("connection ", one.index()), one.application_state());
  }
}

// ---------------------------------------------------------------- the arena

std::string FormatSource(const v1::InspectionSource& source) {
  const std::string process = absl::StrCat("process ", source.pid(), " (", source.program(), ")");
  if (source.kind() == "file") {
    return absl::StrCat(source.file(), ", saved ", FormatTime(source.saved_unix_micros()),
                        " by baton ", source.release(), " from ", process);
  }
  return process;
}

std::string FormatReceives(const v1::InspectedShape& shape) {
  if (shape.shared_receive_queue_depth() == 0) return absl::StrCat(shape.receive_queue_depth());
  return absl::StrCat(shape.shared_receive_queue_depth(), " of each shard, shared");
}

void PrintArena(std::ostream& out, const v1::Inspection& arena, const TableStyle& style) {
  const v1::InspectedShape& shape = arena.shape();
  const v1::InspectionTotals& totals = arena.totals();
  std::vector<std::pair<std::string, std::string>> fields = {
      {"Service", arena.service()},
      {"Arena of", FormatSource(arena.source())},
      {"Layout", absl::StrCat("version ", arena.layout_version(), ", read from version ",
                              arena.oldest_reader())},
      {"Kind", arena.native() ? absl::StrCat("native, ", shape.pooled_queue_pairs(),
                                             " queue pairs for each shard")
                              : "brokered"},
      {"Age", FormatDuration(arena.age_seconds())},
      {"Queue depths",
       absl::StrCat("sends ", shape.send_queue_depth(), ", receives ", FormatReceives(shape))},
      {"Buffers",
       absl::StrCat(FormatBuffers(shape.buffer_bytes(), shape.shards(), shape.shard_heap_bytes()),
                    arena.source().buffers() ? "" : ", not here")},
      {"Shards", absl::StrCat(totals.shards_owned(), " of ", shape.shards(), " owned")},
      {"Connections", absl::StrCat(totals.connections(), " of ", shape.connections())},
      {"Transactions", absl::StrCat(totals.transactions())},
      {"Completions", absl::StrCat(totals.completions(), ", ", totals.completions_unacknowledged(),
                                   " not acknowledged")}};
  if (!arena.source().decoder().empty()) {
    fields.emplace_back(
        "State decoder",
        absl::StrCat(arena.source().decoder(), ": --decoder runs it, a file's word does not"));
  }
  PrintFields(out, fields, style);
}

// ---------------------------------------------------------------- shards and workers

std::string FormatOwner(const v1::InspectedShard& shard) {
  if (shard.owner_slot() < 0) return "";
  if (shard.claimed()) return absl::StrCat("claimed by slot ", shard.owner_slot());
  return absl::StrCat("worker ", shard.owner_worker_id(), ", slot ", shard.owner_slot());
}

std::string FormatHeir(const v1::InspectedShard& shard) {
  if (shard.heir_slot() >= 0) return absl::StrCat("slot ", shard.heir_slot());
  return shard.heir_worker_id() == 0 ? "" : absl::StrCat("worker ", shard.heir_worker_id());
}

std::string FormatState(const v1::InspectedState& state) {
  return state.length() == 0 ? "" : absl::StrCat(state.length(), "B v", state.version());
}

std::string FormatMarks(bool changing, bool invalid) {
  if (invalid) return changing ? "invalid, changing" : "invalid";
  return changing ? "changing" : "";
}

void PrintShards(std::ostream& out, const v1::Inspection& arena, const TableStyle& style) {
  if (arena.shards().empty()) return;
  out << "\nShards:\n";
  Table table({">SHARD", ">EPOCH", "OWNER", "+HEIR", "+>CONNECTIONS", ">COMMITS", "+>ENTRIES",
               ">COMPLETIONS", "STATE", "NOTE"},
              style);
  for (const v1::InspectedShard& shard : arena.shards()) {
    table.Add({shard.index(), shard.epoch(), FormatOwner(shard), FormatHeir(shard),
               shard.connections(), shard.transactions(),
               absl::StrCat(shard.entries_applied(), "/", shard.entries_published()),
               absl::StrCat(shard.acknowledged(), "/", shard.completions()),
               FormatState(shard.state()),
               FormatMarks(shard.changing(), !shard.invalid().empty())});
  }
  table.Print(out);
}

std::string FormatHeapMarks(const v1::InspectedHeap& heap) {
  const std::string marks = FormatMarks(heap.changing(), /*invalid=*/false);
  if (heap.damage().empty()) return marks;
  return absl::StrCat(heap.damage(), marks.empty() ? "" : ", ", marks);
}

// Prints what is committed, as the arena has it, and then what owners say of themselves.
void PrintHeaps(std::ostream& out, const v1::Inspection& arena, const TableStyle& style) {
  if (arena.shards().empty() || arena.shape().shard_heap_bytes() == 0) return;
  out << "\nHeaps:\n";
  Table table({">SHARD", ">ALLOCATIONS", ">KEPT", ">FREE", ">LARGEST FREE", ">FRAGMENTED",
               ">SCRATCH", ">HELD", "NOTE"},
              style);
  for (const v1::InspectedShard& shard : arena.shards()) {
    const v1::InspectedHeap& heap = shard.heap();
    const auto counted = [&heap](std::string text) {
      return heap.damage().empty() ? std::move(text) : std::string();
    };
    const auto told = [&heap](uint64_t bytes) {
      return heap.has_owner() ? FormatBytes(bytes) : std::string();
    };
    table.Add({shard.index(), counted(absl::StrCat(heap.allocations())),
               counted(FormatBytes(heap.kept())), counted(FormatBytes(heap.free())),
               counted(FormatBytes(heap.largest_free())),
               counted(absl::StrFormat("%.0f%%", heap.fragmentation() * 100)),
               told(heap.owner().scratch()), told(heap.owner().held()), FormatHeapMarks(heap)});
  }
  table.Print(out);
}

void PrintShardDetails(std::ostream& out, const v1::Inspection& arena,
                       const v1::InspectedShard& shard) {
  std::vector<std::pair<std::string, std::string>> fields = {
      {"Last cut", shard.cut_epoch() == 0 ? "none yet"
                                          : absl::StrCat("of epoch ", shard.cut_epoch(), " after ",
                                                         shard.cut_tail(), " entries")},
      {"Release", shard.release_requested() == 0
                      ? "not asked for"
                      : absl::StrCat("asked of epoch ", shard.release_requested())},
      {"Commit log",
       absl::StrCat(shard.entries_applied(), " entries applied of ", shard.entries_published(),
                    " published", shard.transaction_begun() ? "; a transaction is begun" : "")},
      {"Completion log",
       absl::StrCat(shard.acknowledged(), " acknowledged of ", shard.completions(),
                    ", looked at up to ", shard.read_cursor())},
      {"In a handler", shard.has_handling() ? absl::StrCat("of completion ", shard.handling())
                                            : "no, or not told"}};
  if (arena.shape().shared_receive_queue_depth() != 0) {
    fields.emplace_back(
        "Shared receives",
        absl::StrCat(shard.shared_receives_posted(), " posted, ", shard.shared_receives_unsure(),
                     " maybe posted",
                     shard.shared_receives_refused() ? "; the queue is broken" : ""));
  }
  if (shard.has_pool()) {
    const auto ring = [](const v1::InspectedRing& one) {
      return absl::StrCat(one.done(), " done of ", one.told());
    };
    const v1::InspectedPool& pool = shard.pool();
    fields.emplace_back("Notices", ring(shard.notices()));
    fields.emplace_back("Orders", ring(shard.orders()));
    fields.emplace_back("Queue pairs",
                        absl::StrCat(pool.free(), " free, ", pool.taken(), " taken, ", pool.lent(),
                                     " lent, ", pool.spent(), " spent"));
  }
  out << '\n';
  PrintFields(out, fields);
}

std::string FormatLocks(const v1::InspectedWorker& worker) {
  std::vector<std::string> locks;
  for (const uint32_t thread : worker.lock_holders()) locks.push_back(absl::StrCat(thread));
  if (worker.dead_locks() > 0) locks.push_back(absl::StrCat(worker.dead_locks(), " of the dead"));
  return absl::StrJoin(locks, ", ");
}

std::string FormatWorkerNotes(const v1::InspectedWorker& worker) {
  std::vector<std::string> notes;
  if (worker.unhealthy()) notes.emplace_back("unhealthy");
  if (worker.sleeping()) notes.emplace_back("sleeping");
  if (worker.stop_requested()) notes.emplace_back("asked to end");
  if (!worker.invalid().empty()) notes.emplace_back("invalid");
  return absl::StrJoin(notes, ", ");
}

void PrintWorkers(std::ostream& out, const v1::Inspection& arena) {
  if (arena.workers().empty()) return;
  out << "\nWorkers:\n";
  Table table({">SLOT", ">HEARTBEATS", "THREADS", "NOTE"});
  for (const v1::InspectedWorker& worker : arena.workers()) {
    table.Add({worker.slot(), worker.heartbeat(), FormatLocks(worker), FormatWorkerNotes(worker)});
  }
  table.Print(out);
}

// ---------------------------------------------------------------- connections

std::string Outstanding(const v1::InspectedQueue& queue) {
  return queue.committed() >= queue.completed()
             ? absl::StrCat(queue.committed() - queue.completed())
             : "invalid";
}

void PrintConnections(std::ostream& out, const v1::Inspection& arena, const TableStyle& style) {
  out << "\nConnections:\n";
  Table table(
      {">CONNECTION", ">SHARD", "STATE", "+>QP", "PEER", ">SENDS", ">RECEIVES", "+STATE", "NOTE"},
      style);
  for (const v1::InspectedConnection& one : arena.connections()) {
    std::string note = FormatMarks(one.changing(), !one.invalid().empty());
    if (one.poison() != "none") absl::StrAppend(&note, note.empty() ? "" : ", ", "poisoned");
    if (!one.last_status().empty()) {
      absl::StrAppend(&note, note.empty() ? "" : ", ", one.last_status());
    }
    table.Add({one.index(), one.shard(), one.state(), one.qp_number(), one.peer_address(),
               Outstanding(one.send()), Outstanding(one.receive()),
               FormatState(one.application_state()), note});
  }
  table.Print(out);
}

void AddQueue(const v1::InspectedConnection& connection, const std::string& name,
              const v1::InspectedQueue& queue, Table* table) {
  table->Add({connection.index(), name, queue.acknowledged(), queue.completed(), queue.posted(),
              queue.attempted(), queue.committed(),
              absl::StrCat(queue.markers_completed(), "/", queue.markers_confirmed(), "/",
                           queue.markers_begun())});
}

void PrintQueues(std::ostream& out, const v1::Inspection& arena, const TableStyle& style) {
  out << "\nQueues:\n";
  Table table({">CONNECTION", "QUEUE", ">ACKNOWLEDGED", ">COMPLETED", ">POSTED", ">ATTEMPTED",
               ">COMMITTED", "+MARKERS"},
              style);
  for (const v1::InspectedConnection& one : arena.connections()) {
    AddQueue(one, "send", one.send(), &table);
    AddQueue(one, "receive", one.receive(), &table);
  }
  table.Print(out);
}

// ---------------------------------------------------------------- what cannot be so

template <typename List>
void Collect(const std::string& where, const List& problems, std::vector<std::string>* all) {
  for (const std::string& problem : problems) {
    all->push_back(absl::StrCat(where.empty() ? "" : where + ": ", problem));
  }
}

template <typename Requests>
void CollectRequests(const std::string& where, const Requests& requests,
                     std::vector<std::string>* all) {
  for (const v1::InspectedWorkRequest& request : requests) {
    Collect(absl::StrCat(where, ", ", request.queue(), " ", request.sequence()), request.invalid(),
            all);
  }
}

void PrintInvalid(std::ostream& out, const v1::Inspection& arena) {
  std::vector<std::string> all;
  Collect("", arena.invalid(), &all);
  for (const v1::InspectedShard& shard : arena.shards()) {
    const std::string where = absl::StrCat("shard ", shard.index());
    Collect(where, shard.invalid(), &all);
    CollectRequests(where, shard.shared_receives(), &all);
  }
  for (const v1::InspectedWorker& worker : arena.workers()) {
    Collect(absl::StrCat("worker slot ", worker.slot()), worker.invalid(), &all);
  }
  for (const v1::InspectedConnection& one : arena.connections()) {
    const std::string where = absl::StrCat("connection ", one.index());
    Collect(where, one.invalid(), &all);
    CollectRequests(where, one.work_requests(), &all);
  }
  if (all.empty()) return;
  out << "\nInvalid:\n";
  for (const std::string& problem : all) out << "  invalid: " << Printable(problem) << '\n';
}

std::string NotShown(uint64_t count, const char* what) {
  return absl::StrCat("\n", count, " ", what, count == 1 ? " is" : "s are", " not shown; ");
}

void PrintLeftOut(std::ostream& out, const v1::Inspection& arena) {
  if (arena.connections_left_out() > 0) {
    out << NotShown(arena.connections_left_out(), "connection");
    if (arena.next_connection() != 0) {
      out << "--start " << arena.next_connection() << " goes on\n";
    } else {
      out << "they come before --start, or came or went meanwhile\n";
    }
  }
  if (arena.work_requests_left_out() > 0) {
    out << NotShown(arena.work_requests_left_out(), "work request")
        << "--connection shows those of one\n";
  }
}

}  // namespace

void PrintInspection(std::ostream& out, const v1::Inspection& inspection,
                     const InspectionParts& parts, const TableStyle& style) {
  PrintArena(out, inspection, style);
  PrintShards(out, inspection, style);
  const bool one_shard = inspection.shards_size() == 1;
  if (one_shard) PrintShardDetails(out, inspection, inspection.shards(0));
  PrintHeaps(out, inspection, style);
  PrintWorkers(out, inspection);
  if (!inspection.connections().empty()) {
    PrintConnections(out, inspection, style);
    if (parts.queues) PrintQueues(out, inspection, style);
  }
  if (parts.work_requests) PrintWorkRequests(out, inspection);
  if (parts.state) PrintStates(out, inspection);
  PrintInvalid(out, inspection);
  PrintLeftOut(out, inspection);
}

}  // namespace baton
