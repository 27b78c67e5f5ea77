#include "supervisor/cli/inspect_contents.h"

#include <cctype>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "supervisor/cli/format.h"
#include "supervisor/cli/table.h"

namespace baton {
namespace {

constexpr size_t kBytesPerLine = 16;

// ---------------------------------------------------------------- work requests

std::string FormatBuffers(const v1::InspectedWorkRequest& request) {
  return absl::StrJoin(request.buffers(), " ",
                       [](std::string* text, const v1::InspectedRange& range) {
                         absl::StrAppendFormat(text, "%d+%d", range.offset(), range.length());
                       });
}

// The details that the opcode has a use for.
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
              request.opcode(), FormatBuffers(request), absl::StrCat(request.tag()),
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

// Lines that repeat the one before are left out behind a "*", as hexdump(1) does.
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

}  // namespace

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

void PrintStates(std::ostream& out, const v1::Inspection& arena) {
  for (const v1::InspectedShard& shard : arena.shards()) {
    PrintState(out, absl::StrCat("shard ", shard.index()), shard.state());
  }
  for (const v1::InspectedConnection& one : arena.connections()) {
    PrintState(out, absl::StrCat("connection ", one.index()), one.application_state());
  }
}

}  // namespace baton
