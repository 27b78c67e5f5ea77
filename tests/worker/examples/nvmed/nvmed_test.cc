// nvmed on Baton, on the soft device: what hosts see of it, upgrades and handoffs under load, and
// hosts and configurations that are wrong.
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "tests/harness/wait_until.h"
#include "tests/worker/examples/nvmed/nvme_host.h"
#include "tests/worker/examples/nvmed/nvmed_fixture.h"

namespace baton::nvmed {
namespace {

using testing::HasSubstr;
using Clock = std::chrono::steady_clock;

constexpr int kEventRequests = 4;  // AERL, and one
const uint32_t kShortKeepAliveMs = 2000 * static_cast<uint32_t>(harness::Slowness());

// "0x80", so that a failure names the status.
std::string Text(StatusCode status) {
  return absl::StrCat("0x", absl::Hex(static_cast<uint16_t>(status)));
}

void ExpectStatus(const absl::StatusOr<Response>& response, StatusCode status) {
  ASSERT_OK(response);
  EXPECT_EQ(Text(response->status), Text(status));
}

struct WrongCommand {
  const char* what;
  SubmissionEntry command;
  Transfer transfer;
  StatusCode status;
};

void ExpectAllRefused(HostQueue& queue, absl::Span<const WrongCommand> commands) {
  for (const WrongCommand& wrong : commands) {
    SCOPED_TRACE(wrong.what);
    const auto response = queue.Execute(wrong.command, wrong.transfer);
    ASSERT_NO_FATAL_FAILURE(ExpectStatus(response, wrong.status));
    EXPECT_TRUE(response->do_not_retry);
  }
}

Transfer Spoilt(Transfer transfer, std::function<void(SubmissionEntry*)> spoil) {
  transfer.spoil = std::move(spoil);
  return transfer;
}

template <typename Data>
std::vector<uint8_t> BytesOf(const Data& data) {
  const auto* begin = reinterpret_cast<const uint8_t*>(&data);
  return {begin, begin + sizeof(data)};
}

TEST_F(NvmedTest, shouldReadBackWhatWasWrittenAfterItsOwnerWasKilled) {
  ASSERT_NO_FATAL_FAILURE(StartService());
  std::unique_ptr<ExampleWorker> heir;
  ASSERT_NO_FATAL_FAILURE(StartWorker({.version = 2}, &heir));
  ASSERT_NO_FATAL_FAILURE(ConnectHost());
  const std::vector<uint8_t> data(4096, 0x5a);
  for (const uint32_t nsid : {kMemoryNamespace, kFileNamespace}) {
    ASSERT_OK(ExpectSuccess(
        host_->io().Execute(BlocksOf(IoOpcode::kWrite, nsid, 8, 8), ToController(data, true)),
        "Write"));
  }
  ASSERT_OK(worker_->process->Kill());
  for (const uint32_t nsid : {kMemoryNamespace, kFileNamespace}) {
    const auto read =
        host_->io().Execute(BlocksOf(IoOpcode::kRead, nsid, 8, 8), ToHost(4096, true));
    ASSERT_OK(ExpectSuccess(read, "Read"));
    EXPECT_EQ(read->data, data);
  }
  ASSERT_OK(host_->Disconnect());
  ExpectNoConnections();
}

// ---------------------------------------------------------------- what hosts are told

TEST_F(NvmedTest, shouldTellHostsWhereItsSubsystemsAre) {
  ASSERT_NO_FATAL_FAILURE(StartCluster());
  ExampleOptions options;
  // A subsystem that this host may not see, and one for all.
  options.config =
      WriteConfig("hidden", absl::StrCat(right_fields_,
                                         " subsystems { nqn: \"nqn.2014-08.org.example:hidden\""
                                         " serial: \"HIDDEN\" hosts: \"nqn.2014-08.org.other\" }"));
  ASSERT_NO_FATAL_FAILURE(StartWorker(options, &worker_));  // --listen HOST:0
  NvmeHostOptions asked = HostOptions(0);
  asked.subsystem_nqn = kDiscoveryNqn;
  const auto host = NvmeHost::Connect(asked);
  ASSERT_OK(host);
  const auto header =
      (*host)->admin().Execute(LogPageOf(LogPageId::kDiscovery, 1024, 0), ToHost(1024));
  ASSERT_OK(ExpectSuccess(header, "Get Log Page, discovery"));
  EXPECT_EQ(DataAs<DiscoveryLogHeader>(*header).numrec, 1u);
  const auto page =
      (*host)->admin().Execute(LogPageOf(LogPageId::kDiscovery, 2048, 0), ToHost(2048));
  ASSERT_OK(ExpectSuccess(page, "Get Log Page, discovery"));
  DiscoveryEntry entry;
  std::memcpy(&entry, page->data.data() + 1024, sizeof(entry));
  EXPECT_STREQ(entry.subnqn, kSubsystem);
  const std::string address = verbs::testing::FabricUnderTest().host;
  EXPECT_EQ(std::string(entry.traddr, address.size() + 1), address + " ");
  EXPECT_EQ(std::string(entry.trsvcid, absl::StrCat(port_, " ").size()), absl::StrCat(port_, " "));
  EXPECT_EQ(entry.trtype, TransportType::kRdma);
  EXPECT_EQ(entry.subtype, SubsystemType::kNvm);
  // It has no I/O queues, and no namespaces.
  ExpectStatus((*host)->admin().Execute(SetFeaturesOf(FeatureId::kNumberOfQueues, 0)),
               StatusCode::kInvalidField);
  ASSERT_OK((*host)->Disconnect());
}

TEST_F(NvmedTest, shouldIdentifyItself) {
  ASSERT_NO_FATAL_FAILURE(StartServiceAndHost());
  HostQueue& admin = host_->admin();
  const auto identified = admin.Execute(IdentifyOf(IdentifyCns::kController), ToHost(4096, true));
  ASSERT_OK(ExpectSuccess(identified, "Identify Controller"));
  const auto controller = DataAs<IdentifyController>(*identified);
  EXPECT_EQ(controller.cntlid, host_->controller());
  EXPECT_EQ(std::string(controller.sn, 7), "BATON1 ");
  EXPECT_EQ(std::string(controller.fr, 3), "v1 ");
  EXPECT_EQ(4096u << controller.mdts, kMaxTransferBytes);
  EXPECT_EQ(controller.ioccsz, (64 + 4096) / 16u);
  EXPECT_STREQ(controller.subnqn, kSubsystem);
  EXPECT_EQ(controller.vwc & kWriteCachePresent, kWriteCachePresent);  // of the file

  const auto active = admin.Execute(IdentifyOf(IdentifyCns::kActiveNamespaces), ToHost(4096));
  ASSERT_OK(ExpectSuccess(active, "Identify, namespaces"));
  const auto list = DataAs<NamespaceList>(*active);
  EXPECT_THAT(std::vector<uint32_t>(list.nsid, list.nsid + 3),
              testing::ElementsAre(kMemoryNamespace, kFileNamespace, 0));
  for (const uint32_t nsid : {kMemoryNamespace, kFileNamespace}) {
    const auto space = admin.Execute(IdentifyOf(IdentifyCns::kNamespace, nsid), ToHost(4096));
    ASSERT_OK(ExpectSuccess(space, "Identify Namespace"));
    EXPECT_EQ(DataAs<IdentifyNamespace>(*space).nsze, kBlocks);
    EXPECT_EQ(DataAs<IdentifyNamespace>(*space).lbaf[0].lbads, 9);
  }
  // A namespace that is not there is zeros, one that cannot be is refused.
  const auto none = admin.Execute(IdentifyOf(IdentifyCns::kNamespace, 17), ToHost(4096));
  ASSERT_OK(ExpectSuccess(none, "Identify Namespace, of none"));
  EXPECT_EQ(none->data, std::vector<uint8_t>(4096));
  ExpectStatus(admin.Execute(IdentifyOf(IdentifyCns::kNamespaceDescriptors, 17), ToHost(4096)),
               StatusCode::kInvalidNamespaceOrFormat);
  ASSERT_OK(host_->Disconnect());
}

TEST_F(NvmedTest, shouldTellWhichBinaryServes) {
  ASSERT_NO_FATAL_FAILURE(StartServiceAndHost());
  std::unique_ptr<ExampleWorker> second;
  ASSERT_NO_FATAL_FAILURE(StartWorker({.version = 2}, &second));
  for (const auto& [server, firmware] : {std::pair(&worker_, "v1 "), std::pair(&second, "v2 ")}) {
    ASSERT_OK(cluster_->Handoff((*server)->id));
    const auto identified =
        host_->admin().Execute(IdentifyOf(IdentifyCns::kController), ToHost(4096));
    ASSERT_OK(ExpectSuccess(identified, "Identify Controller"));
    EXPECT_EQ(std::string(DataAs<IdentifyController>(*identified).fr, 3), firmware);
  }
  ASSERT_OK(host_->Disconnect());
}

// ---------------------------------------------------------------- load

TEST_F(NvmedTest, shouldKeepWhatIsWrittenOverHandoffsAndUpgrades) {
  ASSERT_NO_FATAL_FAILURE(StartService());
  StartLoad(kMemoryNamespace, 2, 6);
  StartLoad(kFileNamespace, 2, 6);
  StartLoad(kMemoryNamespace, 1, 1);
  ASSERT_NO_FATAL_FAILURE(ExpectProgress());
  for (int i = 0; i < 4; ++i) {
    ExampleOptions options;
    options.version = 2 - i % 2;
    std::unique_ptr<ExampleWorker> next;
    ASSERT_NO_FATAL_FAILURE(StartWorker(options, &next));
    ASSERT_OK(cluster_->Handoff(next->id));
    worker_ = std::move(next);
    ASSERT_NO_FATAL_FAILURE(ExpectProgress());
  }
  for (const char* program : {"nvmed-v2", "nvmed-v1", "nvmed-v2"}) {
    ASSERT_NO_FATAL_FAILURE(UpgradeTo(program));
    ASSERT_NO_FATAL_FAILURE(ExpectProgress());
  }
  ExpectNothingLost();
  ExpectNoConnections();
}

TEST_F(NvmedTest, shouldServeMoreCommandsThanThereAreChunks) {
  ASSERT_NO_FATAL_FAILURE(StartCluster(12, 4));
  ASSERT_NO_FATAL_FAILURE(StartWorker({}, &worker_));
  for (int i = 0; i < 2; ++i) StartLoad(kFileNamespace, kIoQueues, 31);
  ASSERT_NO_FATAL_FAILURE(ExpectProgress(300));
  ExpectNothingLost();
  ExpectNoConnections();
}

// More of them than there are chunks, in every way that data can come. Some wait for a chunk,
// others for those that overlap them, which have all of the chunks.
TEST_F(NvmedTest, shouldExecuteWritesThatOverlap) {
  ASSERT_NO_FATAL_FAILURE(StartCluster(12, 4));
  ASSERT_NO_FATAL_FAILURE(StartWorker({}, &worker_));
  ASSERT_NO_FATAL_FAILURE(ConnectHost());
  HostQueue& queue = host_->io();
  std::unique_ptr<ExampleWorker> heir;
  ASSERT_NO_FATAL_FAILURE(StartWorker({}, &heir));
  for (int round = 0; round < 60; ++round) {
    SCOPED_TRACE(round);
    for (const uint32_t nsid : {kFileNamespace, kMemoryNamespace}) {
      const SubmissionEntry write = BlocksOf(IoOpcode::kWrite, nsid, 0, 8);
      std::vector<uint16_t> submitted;
      for (size_t i = 0, room = queue.room(); i < room; ++i) {
        const std::vector<uint8_t> block(4096, static_cast<uint8_t>(i));
        const std::vector<uint8_t> range = DatasetRangeOf(0, 8);
        absl::StatusOr<uint16_t> cid;
        switch ((i * 7 + static_cast<size_t>(round)) % 5) {
          case 0:
            cid = queue.Submit(write, InCapsule(block));
            break;
          case 1:
            cid = queue.Submit(DeallocateOf(nsid), InCapsule(range));
            break;
          case 2:
            cid = queue.Submit(DeallocateOf(nsid), ToController(range));
            break;
          case 3:
            cid = queue.Submit(BlocksOf(IoOpcode::kWriteZeroes, nsid, 0, 8));
            break;
          default:
            cid = queue.Submit(write, ToController(block));
        }
        ASSERT_OK(cid);
        submitted.push_back(*cid);
      }
      if (round == 30 && nsid == kFileNamespace) ASSERT_OK(worker_->process->Kill());
      for (const uint16_t cid : submitted) ASSERT_OK(ExpectSuccess(queue.Await(cid), "a write"));
      const std::vector<uint8_t> last(4096, 0xee);
      ASSERT_OK(ExpectSuccess(queue.Execute(write, InCapsule(last)), "the last write"));
      const auto read = queue.Execute(BlocksOf(IoOpcode::kRead, nsid, 0, 8), ToHost(4096));
      ASSERT_OK(ExpectSuccess(read, "Read"));
      EXPECT_EQ(read->data, last);
    }
  }
  ASSERT_OK(host_->Disconnect());
  ExpectNoConnections();
}

// ---------------------------------------------------------------- commands that are wrong

TEST_F(NvmedTest, shouldRefuseIoThatIsWrong) {
  ASSERT_NO_FATAL_FAILURE(StartCluster());
  ExampleOptions options;
  options.config = WriteConfig("read_only", right_fields_, ReadOnlyNamespace(9));
  ASSERT_NO_FATAL_FAILURE(StartWorker(options, &worker_));
  ASSERT_NO_FATAL_FAILURE(ConnectHost());
  const uint32_t one = kMemoryNamespace;
  const auto read = [&](uint64_t slba, uint32_t blocks) {
    return BlocksOf(IoOpcode::kRead, one, slba, blocks);
  };
  const auto write = [&](uint64_t slba, uint32_t blocks) {
    return BlocksOf(IoOpcode::kWrite, one, slba, blocks);
  };
  const std::vector<uint8_t> block(kBlockBytes, 1);
  const auto sgl = [](uint8_t identifier) {
    return [identifier](SubmissionEntry* entry) { entry->sgl1.identifier = identifier; };
  };
  const uint32_t too_many = kMaxTransferBytes / kBlockBytes + 1;
  const WrongCommand cases[] = {
      {"a read behind the end", read(kBlocks, 1), ToHost(512), StatusCode::kLbaOutOfRange},
      {"a read over the end", read(kBlocks - 1, 2), ToHost(1024), StatusCode::kLbaOutOfRange},
      {"a read whose end is no number", read(UINT64_MAX, 2), ToHost(1024),
       StatusCode::kLbaOutOfRange},
      {"a write over the end", write(kBlocks - 1, 2), ToController(std::vector<uint8_t>(1024)),
       StatusCode::kLbaOutOfRange},
      {"a write in its capsule behind the end", write(kBlocks, 1), InCapsule(block),
       StatusCode::kLbaOutOfRange},
      {"an unknown opcode",
       CommandOf(static_cast<IoOpcode>(0x7e), one),
       {},
       StatusCode::kInvalidOpcode},
      {"a command of vendors with data", CommandOf(static_cast<IoOpcode>(0xc1), one),
       ToController(block), StatusCode::kInvalidOpcode},
      {"Compare, which is not offered", BlocksOf(IoOpcode::kCompare, one, 0, 1),
       ToController(block), StatusCode::kInvalidOpcode},
      {"an unknown namespace", BlocksOf(IoOpcode::kRead, 77, 0, 1), ToHost(512),
       StatusCode::kInvalidNamespaceOrFormat},
      {"a write to an unknown namespace", BlocksOf(IoOpcode::kWrite, 77, 0, 1), ToController(block),
       StatusCode::kInvalidNamespaceOrFormat},
      {"a flush of no namespace",
       CommandOf(IoOpcode::kFlush),
       {},
       StatusCode::kInvalidNamespaceOrFormat},
      {"an SGL of a transport", read(0, 1), Spoilt(ToHost(512), sgl(0x5a)),
       StatusCode::kSglDescriptorTypeInvalid},
      {"a bit bucket", read(0, 1), Spoilt(ToHost(512), sgl(0x10)),
       StatusCode::kSglDescriptorTypeInvalid},
      {"data of ours in a capsule", read(0, 1), Spoilt(ToHost(512), sgl(0x01)),
       StatusCode::kInvalidField},
      {"a data pointer of PRPs", read(0, 1),
       Spoilt(ToHost(512), [](SubmissionEntry* entry) { entry->flags = 0; }),
       StatusCode::kInvalidField},
      {"a fused command", read(0, 1),
       Spoilt(ToHost(512), [](SubmissionEntry* entry) { entry->flags |= 1; }),
       StatusCode::kInvalidField},
      {"an SGL that is too short", read(0, 2), ToHost(512), StatusCode::kDataSglLengthInvalid},
      {"a write that is too short", write(0, 2), ToController(block),
       StatusCode::kDataSglLengthInvalid},
      {"a capsule that is too short", write(0, 2), InCapsule(block),
       StatusCode::kDataSglLengthInvalid},
      {"an SGL beyond the capsule", write(0, 1),
       Spoilt(InCapsule(block), [](SubmissionEntry* entry) { entry->sgl1.address = 4097; }),
       StatusCode::kSglOffsetInvalid},
      {"more in the capsule than came", write(0, 2),
       Spoilt(InCapsule(block), [](SubmissionEntry* entry) { entry->sgl1.length = 1024; }),
       StatusCode::kDataSglLengthInvalid},
      {"a read above MDTS", read(0, too_many), ToHost(too_many * kBlockBytes),
       StatusCode::kInvalidField},
      {"a write above MDTS", write(0, too_many),
       ToController(std::vector<uint8_t>(too_many * kBlockBytes)), StatusCode::kInvalidField},
      {"protection information", BlocksOf(IoOpcode::kRead, one, 0, 1, 0x2000), ToHost(512),
       StatusCode::kInvalidField},
      {"a write to what is read-only", BlocksOf(IoOpcode::kWrite, 9, 0, 1), InCapsule(block),
       StatusCode::kNamespaceWriteProtected},
      {"a second Connect", host_->ConnectCommandOf(host_->io()),
       InCapsule(BytesOf(host_->ConnectDataOf(host_->io()))), StatusCode::kCommandSequenceError},
      {"a property on an I/O queue", GetPropertyOf(kPropertyCsts), {}, StatusCode::kInvalidField},
      {"an unknown command of fabrics",
       FabricsOf(static_cast<FabricsType>(0x0c)),
       {},
       StatusCode::kInvalidOpcode},
  };
  ASSERT_NO_FATAL_FAILURE(ExpectAllRefused(host_->io(), cases));
  // Each of them is in the log, and none of them was counted as I/O or has changed a block.
  const auto health = host_->ReadHealthLog();
  ASSERT_OK(health);
  EXPECT_EQ(health->error_log_entries[0], std::size(cases));
  EXPECT_EQ(health->host_read_commands[0], 0u);
  EXPECT_EQ(health->host_write_commands[0], 0u);
  const auto errors =
      host_->admin().Execute(LogPageOf(LogPageId::kErrorInformation, 64), ToHost(64));
  ASSERT_OK(ExpectSuccess(errors, "Get Log Page, errors"));
  const auto newest = DataAs<ErrorLogEntry>(*errors);
  EXPECT_EQ(newest.error_count, std::size(cases));
  EXPECT_EQ(newest.sqid, 1);
  EXPECT_EQ(CodeOf(newest.status), StatusCode::kInvalidOpcode);
  const auto first = host_->io().Execute(read(0, 2), ToHost(1024));
  ASSERT_OK(ExpectSuccess(first, "Read"));
  EXPECT_EQ(first->data, std::vector<uint8_t>(1024));
  ASSERT_OK(host_->Disconnect());
}

TEST_F(NvmedTest, shouldRefuseAdminCommandsThatAreWrong) {
  ASSERT_NO_FATAL_FAILURE(StartServiceAndHost());
  const WrongCommand cases[] = {
      {"an unknown opcode",
       CommandOf(static_cast<AdminOpcode>(0x7d)),
       {},
       StatusCode::kInvalidOpcode},
      {"Create I/O Submission Queue",
       CommandOf(AdminOpcode::kCreateIoSq),
       {},
       StatusCode::kInvalidOpcode},
      {"an unknown log page", LogPageOf(static_cast<LogPageId>(0xc0), 512), ToHost(512),
       StatusCode::kInvalidLogPage},
      {"the discovery log", LogPageOf(LogPageId::kDiscovery, 1024), ToHost(1024),
       StatusCode::kInvalidLogPage},
      {"an unknown feature",
       SetFeaturesOf(static_cast<FeatureId>(0xc5), 1),
       {},
       StatusCode::kInvalidField},
      {"more queues while there are some",
       SetFeaturesOf(FeatureId::kNumberOfQueues, 0),
       {},
       StatusCode::kCommandSequenceError},
      {"65536 queues",
       SetFeaturesOf(FeatureId::kNumberOfQueues, 0xffff),
       {},
       StatusCode::kInvalidField},
      {"an unknown property", GetPropertyOf(0x40), {}, StatusCode::kInvalidField},
      {"a property of the wrong size", GetPropertyOf(kPropertyCap), {}, StatusCode::kInvalidField},
      {"a property that is read only",
       SetPropertyOf(kPropertyVs, 1),
       {},
       StatusCode::kInvalidField},
      {"a second Connect", host_->ConnectCommandOf(host_->admin()),
       ToController(BytesOf(host_->ConnectDataOf(host_->admin()))),
       StatusCode::kCommandSequenceError},
      {"data in the capsule", IdentifyOf(IdentifyCns::kController),
       InCapsule(std::vector<uint8_t>(4096)), StatusCode::kSglDescriptorTypeInvalid},
      {"an SGL that is too short", IdentifyOf(IdentifyCns::kController), ToHost(2048),
       StatusCode::kDataSglLengthInvalid},
      {"a log page above MDTS", LogPageOf(LogPageId::kHealth, 2 * kMaxTransferBytes),
       ToHost(2 * kMaxTransferBytes), StatusCode::kInvalidField},
      {"Disconnect",
       FabricsOf(FabricsType::kDisconnect),
       {},
       StatusCode::kDisconnectInvalidQueueType},
  };
  ASSERT_NO_FATAL_FAILURE(ExpectAllRefused(host_->admin(), cases));
  ASSERT_OK(host_->KeepAlive());
  ASSERT_OK(host_->Disconnect());
}

TEST_F(NvmedTest, shouldHoldSoManyEventRequestsAndNoMore) {
  ASSERT_NO_FATAL_FAILURE(StartService());
  std::unique_ptr<ExampleWorker> heir;
  ASSERT_NO_FATAL_FAILURE(StartWorker({.version = 2}, &heir));
  ASSERT_NO_FATAL_FAILURE(ConnectHost());
  HostQueue& admin = host_->admin();
  const auto identified = admin.Execute(IdentifyOf(IdentifyCns::kController), ToHost(4096));
  ASSERT_OK(ExpectSuccess(identified, "Identify Controller"));
  const int allowed = DataAs<IdentifyController>(*identified).aerl + 1;
  std::vector<uint16_t> held;
  for (int i = 0; i < allowed; ++i) {
    const auto cid = admin.Submit(CommandOf(AdminOpcode::kAsyncEventRequest));
    ASSERT_OK(cid);
    held.push_back(*cid);
  }
  ExpectStatus(admin.Execute(CommandOf(AdminOpcode::kAsyncEventRequest)),
               StatusCode::kAsyncEventRequestLimitExceeded);
  EXPECT_EQ(admin.outstanding(), held.size());
  // They are held still by whoever comes after.
  ASSERT_OK(worker_->process->Kill());
  const auto aborted = admin.Execute(AbortOf(0, held[1]));
  ASSERT_OK(ExpectSuccess(aborted, "Abort"));
  EXPECT_EQ(aborted->result & kNotAborted, 0u);
  ExpectStatus(admin.Await(held[1]), StatusCode::kAbortRequested);
  const auto unknown = admin.Execute(AbortOf(0, 9999));
  ASSERT_OK(ExpectSuccess(unknown, "Abort"));
  EXPECT_EQ(unknown->result & kNotAborted, kNotAborted);
  EXPECT_EQ(admin.outstanding(), held.size() - 1);
  ASSERT_OK(host_->Disconnect());
}

TEST_F(NvmedTest, shouldExecuteNothingAndHoldNothingAfterAReset) {
  ASSERT_NO_FATAL_FAILURE(StartServiceAndHost());
  std::vector<uint16_t> held;
  const auto hold = [&] {
    const auto cid = host_->admin().Submit(CommandOf(AdminOpcode::kAsyncEventRequest));
    if (cid.ok()) held.push_back(*cid);
    return cid.status();
  };
  for (int i = 0; i < kEventRequests; ++i) ASSERT_OK(hold());
  ASSERT_OK(host_->Reset());
  for (const uint16_t cid : held) host_->admin().ForgetHeld(cid);
  // By either way that data can come.
  for (const uint32_t nsid : {kMemoryNamespace, kFileNamespace}) {
    for (const Transfer& data :
         {ToController(std::vector<uint8_t>(512, 1)), InCapsule(std::vector<uint8_t>(512, 2))}) {
      ExpectStatus(host_->io().Execute(BlocksOf(IoOpcode::kWrite, nsid, 0, 1), data),
                   StatusCode::kCommandSequenceError);
    }
  }
  ASSERT_OK(host_->Enable());
  for (const uint32_t nsid : {kMemoryNamespace, kFileNamespace}) {
    const auto read = host_->io().Execute(BlocksOf(IoOpcode::kRead, nsid, 0, 1), ToHost(512));
    ASSERT_OK(ExpectSuccess(read, "Read"));
    EXPECT_EQ(read->data, std::vector<uint8_t>(512)) << "namespace " << nsid;
  }
  for (int i = 0; i < kEventRequests; ++i) ASSERT_OK(hold());
  ExpectStatus(host_->admin().Execute(CommandOf(AdminOpcode::kAsyncEventRequest)),
               StatusCode::kAsyncEventRequestLimitExceeded);
  ASSERT_OK(host_->Disconnect());
}

TEST_F(NvmedTest, shouldEndAQueueThatIsAskedTo) {
  ASSERT_NO_FATAL_FAILURE(StartServiceAndHost(2));
  ASSERT_OK(ExpectSuccess(host_->io(0).Execute(FabricsOf(FabricsType::kDisconnect)), "Disconnect"));
  ASSERT_OK(host_->io(0).WaitUntilDisconnected());
  ASSERT_OK(ExpectSuccess(
      host_->io(1).Execute(BlocksOf(IoOpcode::kRead, kMemoryNamespace, 0, 1), ToHost(512)),
      "Read"));
  ASSERT_OK(host_->io(1).Disconnect());
  ASSERT_OK(host_->admin().Disconnect());
  ExpectNoConnections();
}

TEST_F(NvmedTest, shouldTellOfNamespacesThatAnUpgradeHasAdded) {
  ASSERT_NO_FATAL_FAILURE(StartServiceAndHost());
  std::unique_ptr<ExampleWorker> next;
  HostQueue& admin = host_->admin();
  ASSERT_OK(ExpectSuccess(admin.Execute(SetFeaturesOf(FeatureId::kAsyncEventConfiguration,
                                                      kAsyncEventNamespaceChanged)),
                          "Set Features, events"));
  const auto request = admin.Submit(CommandOf(AdminOpcode::kAsyncEventRequest));
  ASSERT_OK(request);
  ExampleOptions options;
  options.version = 2;
  options.config = WriteConfig("more", right_fields_, ReadOnlyNamespace(9));
  ASSERT_NO_FATAL_FAILURE(StartWorker(options, &next));
  ASSERT_OK(cluster_->Handoff(next->id));
  const auto event = admin.Await(*request);
  ASSERT_OK(ExpectSuccess(event, "Asynchronous Event Request"));
  EXPECT_EQ(event->result, AsyncEventResult(AsyncEventType::kNotice, kNoticeNamespaceChanged,
                                            LogPageId::kChangedNamespaces));
  const auto log = admin.Execute(LogPageOf(LogPageId::kChangedNamespaces, 4096), ToHost(4096));
  ASSERT_OK(ExpectSuccess(log, "Get Log Page, changed namespaces"));
  EXPECT_NE(DataAs<NamespaceList>(*log).nsid[0], 0u);
  ASSERT_OK(
      ExpectSuccess(host_->io().Execute(BlocksOf(IoOpcode::kRead, 9, 0, 1), ToHost(512)), "Read"));
  ASSERT_OK(host_->Disconnect());
}

// ---------------------------------------------------------------- queues that are wrong

TEST_F(NvmedTest, shouldExecuteNothingBeforeConnect) {
  ASSERT_NO_FATAL_FAILURE(StartService());
  const auto host = NvmeHost::Open(HostOptions());
  ASSERT_OK(host);
  for (const SubmissionEntry& command :
       {IdentifyOf(IdentifyCns::kController), GetPropertyOf(kPropertyCsts)}) {
    ExpectStatus((*host)->admin().Execute(command, ToHost(4096)),
                 StatusCode::kCommandSequenceError);
  }
  // Connected, and not enabled.
  ASSERT_OK((*host)->ConnectAdmin());
  ExpectStatus((*host)->admin().Execute(IdentifyOf(IdentifyCns::kController), ToHost(4096)),
               StatusCode::kCommandSequenceError);
  ASSERT_OK((*host)->Enable());
  ASSERT_OK((*host)->AskForQueues(1));

  const auto queue = (*host)->OpenQueue(1);
  ASSERT_OK(queue);
  ExpectStatus((*queue)->Execute(BlocksOf(IoOpcode::kRead, kMemoryNamespace, 0, 1), ToHost(512)),
               StatusCode::kCommandSequenceError);
  ASSERT_OK(ExpectSuccess((*queue)->Execute((*host)->ConnectCommandOf(**queue),
                                            InCapsule(BytesOf((*host)->ConnectDataOf(**queue)))),
                          "Connect"));
  ASSERT_OK(ExpectSuccess(
      (*queue)->Execute(BlocksOf(IoOpcode::kRead, kMemoryNamespace, 0, 1), ToHost(512)), "Read"));
  ASSERT_OK((*queue)->Disconnect());
  ASSERT_OK((*host)->Disconnect());
}

TEST_F(NvmedTest, shouldLetHostsGoThatSayOrTakeNothingAndNoOther) {
  ASSERT_NO_FATAL_FAILURE(StartCluster());
  ExampleOptions options;
  options.config = WriteConfig(
      "hasty", absl::StrCat(right_fields_, " host_timeout_ms: ", 1000 * harness::Slowness()));
  std::unique_ptr<ExampleWorker> heir;
  ASSERT_NO_FATAL_FAILURE(StartWorker(options, &worker_));
  StartLoad(kMemoryNamespace);
  for (const bool killed : {false, true}) {
    SCOPED_TRACE(killed);
    const auto silent = NvmeHost::Open(HostOptions());
    ASSERT_OK(silent);
    // What it does not look at is not acknowledged.
    const auto deaf = NvmeHost::Connect(HostOptions());
    ASSERT_OK(deaf);
    const SubmissionEntry read = BlocksOf(IoOpcode::kRead, kFileNamespace, 0, 8);
    ASSERT_OK((*deaf)->io().Submit(read, ToHost(4096)));
    if (killed) {
      ASSERT_NO_FATAL_FAILURE(StartWorker(options, &heir));
      ASSERT_OK(worker_->process->Kill());
    }
    ASSERT_OK((*silent)->admin().WaitUntilDisconnected());
    for (const char* why : {"no Connect within", "it takes nothing that it is sent"}) {
      ExpectInLog(killed ? *heir : *worker_, why);
    }
    ASSERT_OK((*deaf)->io().WaitUntilDisconnected());
    ASSERT_NO_FATAL_FAILURE(ExpectProgress());
  }
  ExpectNothingLost();
  ExpectNoConnections();
}

TEST_F(NvmedTest, shouldRefuseConnectsThatAreWrong) {
  ASSERT_NO_FATAL_FAILURE(StartCluster());
  ExampleOptions options;
  options.config = WriteConfig("hosts", right_fields_, "hosts: \"nqn.2014-08.org.example:host\"");
  ASSERT_NO_FATAL_FAILURE(StartWorker(options, &worker_));

  NvmeHostOptions stranger = HostOptions();
  stranger.host_nqn = "nqn.2014-08.org.example:stranger";
  EXPECT_THAT(std::string(NvmeHost::Connect(stranger).status().message()),
              HasSubstr("Connect of the admin queue failed with status 0x184"));
  NvmeHostOptions astray = HostOptions();
  astray.subsystem_nqn = "nqn.2014-08.org.example:none";
  EXPECT_THAT(std::string(NvmeHost::Connect(astray).status().message()),
              HasSubstr("Connect of the admin queue failed with status 0x182"));

  const auto host = NvmeHost::Open(HostOptions());
  ASSERT_OK(host);
  ASSERT_OK((*host)->ConnectAdmin());
  ASSERT_OK((*host)->Enable());
  const auto granted = (*host)->AskForQueues(2);
  ASSERT_OK(granted);
  ASSERT_EQ(*granted, 2);
  ASSERT_OK((*host)->AddQueue(1));
  struct Case {
    const char* what;
    uint16_t queue;
    std::function<void(ConnectCommand*, ConnectData*)> spoil;
    StatusCode status;
    uint64_t result;  // with kConnectInvalidParameters
  };
  const auto invalid = StatusCode::kConnectInvalidParameters;
  const Case cases[] = {
      {"a queue beyond the granted", 3, [](auto*, auto*) {}, invalid,
       ConnectInvalidResult(false, offsetof(ConnectCommand, qid))},
      {"a queue that is there", 1, [](auto*, auto*) {}, StatusCode::kCommandSequenceError, 0},
      {"another queue than the connection's", 2, [](auto* command, auto*) { command->qid = 1; },
       invalid, ConnectInvalidResult(false, offsetof(ConnectCommand, qid))},
      {"an unknown controller", 2, [](auto*, auto* data) { data->cntlid = 77; }, invalid,
       ConnectInvalidResult(true, offsetof(ConnectData, cntlid))},
      {"another host", 2, [](auto*, auto* data) { data->hostid[3] ^= 1; }, invalid,
       ConnectInvalidResult(true, offsetof(ConnectData, hostid))},
      {"another format", 2, [](auto* command, auto*) { command->recfmt = 1; },
       StatusCode::kConnectIncompatibleFormat, 0},
      {"a longer queue", 2, [](auto* command, auto*) { command->sqsize = 32; }, invalid,
       ConnectInvalidResult(false, offsetof(ConnectCommand, sqsize))},
  };
  for (const Case& wrong : cases) {
    SCOPED_TRACE(wrong.what);
    const auto queue = (*host)->OpenQueue(wrong.queue);
    ASSERT_OK(queue);
    auto command = ViewOf<ConnectCommand>((*host)->ConnectCommandOf(**queue));
    ConnectData data = (*host)->ConnectDataOf(**queue);
    wrong.spoil(&command, &data);
    const auto response = (*queue)->Execute(EntryOf(command), InCapsule(BytesOf(data)));
    ASSERT_OK(response);
    EXPECT_EQ(Text(response->status), Text(wrong.status));
    EXPECT_EQ(response->result, wrong.result);
    ASSERT_OK((*queue)->Disconnect());
  }
  ASSERT_OK((*host)->AddQueue(2));
  ASSERT_OK((*host)->Disconnect());
  ExpectNoConnections();
}

TEST_F(NvmedTest, shouldRejectConnectionsThatAreWrong) {
  ASSERT_NO_FATAL_FAILURE(StartService());
  const auto fabric = HostFabric::Open();
  ASSERT_OK(fabric);
  const std::tuple<const char*, RdmaRequest, size_t, RdmaRejectStatus> cases[] = {
      {"too short", {0, 0, 32, 31, 0, {}}, 31, RdmaRejectStatus::kInvalidPrivateDataLength},
      {"another format", {1, 0, 32, 31, 0, {}}, 32, RdmaRejectStatus::kInvalidRecfmt},
      {"no such queue", {0, kIoQueues + 1, 32, 31, 0, {}}, 32, RdmaRejectStatus::kInvalidQid},
      {"an empty queue", {0, 0, 32, 0, 0, {}}, 32, RdmaRejectStatus::kInvalidHsqsize},
      {"a queue that is too long", {0, 0, 32, 32, 0, {}}, 32, RdmaRejectStatus::kInvalidHsqsize},
  };
  for (const auto& [what, request, bytes, status] : cases) {
    SCOPED_TRACE(what);
    HostQueueOptions options;
    options.port = port_;
    options.private_data.assign(reinterpret_cast<const char*>(&request), bytes);
    const auto queue = HostQueue::Open(**fabric, options);
    EXPECT_EQ(std::string(queue.status().message()),
              absl::StrCat("rejected with status ", static_cast<int>(status)));
  }
  ExpectNoConnections();
}

// The receives that all of them need do not fit one transaction, so requests are answered in
// several. The owner dies between them.
TEST_F(NvmedTest, shouldAcceptManyLongQueuesThatAskAtOnce) {
  constexpr uint32_t kEntries = 1024, kHosts = 6;
  ASSERT_NO_FATAL_FAILURE(StartCluster(2 * kHosts + 2, 6, kEntries));
  std::unique_ptr<ExampleWorker> heir;
  ExampleOptions doomed;
  doomed.test_hooks = true;
  doomed.crash_at = "nvmed-accept-end:6";
  ASSERT_NO_FATAL_FAILURE(StartWorker(doomed, &worker_));
  // Two that are ready before a broker is could be given the shards in either order.
  ASSERT_OK(cluster_->WaitUntilOwner(worker_->id));
  ASSERT_NO_FATAL_FAILURE(StartWorker({.version = 2}, &heir));
  StartLoad(kMemoryNamespace);  // the first two of those that it accepts
  ASSERT_NO_FATAL_FAILURE(ExpectProgress());
  ASSERT_OK(worker_->process->Signal(SIGSTOP));
  std::vector<absl::Status> results(kHosts);
  std::vector<std::thread> hosts;
  for (absl::Status& result : results) {
    NvmeHostOptions options = HostOptions();
    options.entries = kEntries;
    options.data_bytes = 4096;
    hosts.emplace_back([options, &result] {
      const auto host = NvmeHost::Connect(options);
      result = host.ok() ? (*host)->Disconnect() : host.status();
    });
  }
  EXPECT_OK(harness::WaitUntil("all of them to ask", [&] {
    const auto list = cluster_->operators().ListConnections("nvmed");
    return list.ok() && list->connections_size() == kHosts + 2;
  }));
  EXPECT_OK(worker_->process->Signal(SIGCONT));
  for (std::thread& host : hosts) host.join();
  for (const absl::Status& result : results) EXPECT_OK(result);
  const auto ended = worker_->process->WaitEnd(kTimeout);
  ASSERT_OK(ended);
  EXPECT_TRUE(WIFSIGNALED(*ended) && WTERMSIG(*ended) == SIGKILL) << *ended;
  ASSERT_NO_FATAL_FAILURE(ExpectProgress());
  ExpectNothingLost();
}

TEST_F(NvmedTest, shouldEndTheConnectionOfAWrongHostAndNoOther) {
  ASSERT_NO_FATAL_FAILURE(StartService());
  StartLoad(kMemoryNamespace);
  ASSERT_NO_FATAL_FAILURE(ExpectProgress());
  const auto spoil_key = [](SubmissionEntry* entry) { entry->sgl1.reserved[1] ^= 0x55; };
  const std::pair<const char*, std::function<absl::Status(HostQueue&)>> cases[] = {
      {"a capsule of 63 bytes",
       [](HostQueue& queue) { return queue.SendBytes(std::vector<uint8_t>(63)); }},
      {"remote access error",  // a key that is none, to read from
       [&](HostQueue& queue) {
         return queue
             .Submit(BlocksOf(IoOpcode::kWrite, kFileNamespace, 0, 1),
                     Spoilt(ToController(std::vector<uint8_t>(512)), spoil_key))
             .status();
       }},
      {"remote access error",  // and to write to
       [&](HostQueue& queue) {
         return queue
             .Submit(BlocksOf(IoOpcode::kRead, kMemoryNamespace, 0, 1),
                     Spoilt(ToHost(512), spoil_key))
             .status();
       }},
  };
  size_t seen = 0;
  for (const auto& [reason, act] : cases) {
    SCOPED_TRACE(reason);
    const auto host = NvmeHost::Connect(HostOptions());
    ASSERT_OK(host);
    ASSERT_OK(act((*host)->io()));
    ASSERT_OK((*host)->io().WaitUntilDisconnected());
    EXPECT_OK(harness::WaitUntil("the reason in the log", [&, text = reason] {
      const std::string log = worker_->process->LogTail(100'000).substr(seen);
      return log.find(text) != std::string::npos;
    }));
    seen = worker_->process->LogTail(100'000).size();
    // Its controller lives.
    ASSERT_OK((*host)->KeepAlive());
    ASSERT_OK((*host)->admin().Disconnect());
    ASSERT_NO_FATAL_FAILURE(ExpectProgress());
  }
  ExpectNothingLost();
  ExpectNoConnections();
}

// ---------------------------------------------------------------- keep alive

TEST_F(NvmedTest, shouldLetAHostGoThatFallsSilentAndNoOther) {
  ASSERT_NO_FATAL_FAILURE(StartService());
  std::unique_ptr<ExampleWorker> heir;
  StartLoad(kMemoryNamespace);
  // Its timeout is long, and was set after the connect.
  const auto patient = NvmeHost::Connect(HostOptions());
  ASSERT_OK(patient);
  ASSERT_OK(
      ExpectSuccess((*patient)->admin().Execute(SetFeaturesOf(FeatureId::kKeepAliveTimer, 600'000)),
                    "Set Features, keep alive"));
  for (const bool killed : {false, true}) {
    SCOPED_TRACE(killed);
    NvmeHostOptions options = HostOptions(2);
    options.keep_alive_ms = kShortKeepAliveMs;
    const auto silent = NvmeHost::Connect(options);
    ASSERT_OK(silent);
    const auto late = NvmeHost::Connect(HostOptions());  // as the patient one, but short
    ASSERT_OK(late);
    ASSERT_OK(ExpectSuccess(
        (*late)->admin().Execute(SetFeaturesOf(FeatureId::kKeepAliveTimer, kShortKeepAliveMs)),
        "Set Features, keep alive"));
    if (killed) {
      ASSERT_NO_FATAL_FAILURE(StartWorker({.version = 2}, &heir));
      ASSERT_OK(worker_->process->Kill());
    }
    for (const auto& host : {&*silent, &*late}) {
      ASSERT_OK((*host)->admin().WaitUntilDisconnected());
      for (size_t i = 0; i < (*host)->io_queues(); ++i) {
        ASSERT_OK((*host)->io(i).WaitUntilDisconnected());
      }
    }
    ExpectInLog(killed ? *heir : *worker_, "no sign of life");
    ASSERT_OK((*patient)->KeepAlive());
    ASSERT_NO_FATAL_FAILURE(ExpectProgress());
  }
  ASSERT_OK((*patient)->Disconnect());
  ExpectNothingLost();
  ExpectNoConnections();
}

// Just in time, and while its owner is killed.
TEST_F(NvmedTest, shouldKeepAHostThatShowsLife) {
  ASSERT_NO_FATAL_FAILURE(StartService());
  std::unique_ptr<ExampleWorker> heir;
  for (uint32_t keep_alive_ms = kShortKeepAliveMs; keep_alive_ms <= 4 * kShortKeepAliveMs;
       keep_alive_ms *= 2) {
    ASSERT_NO_FATAL_FAILURE(StartWorker({.version = 2}, &heir));
    NvmeHostOptions options = HostOptions();
    options.keep_alive_ms = keep_alive_ms;
    const auto host = NvmeHost::Connect(options);
    absl::Status status = host.status();
    auto heard = Clock::now();
    std::chrono::nanoseconds longest{};
    for (int i = 0; i < 4 && status.ok(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(keep_alive_ms * 9 / 10));
      if (i == 1) ASSERT_OK(worker_->process->Kill());
      const auto sent = Clock::now();
      status = (*host)->KeepAlive();
      longest = std::max<std::chrono::nanoseconds>(longest, Clock::now() - heard);
      heard = sent;
    }
    if (status.ok()) return;
    // It may have been silent for too long: it had no processor.
    ASSERT_GE(longest, std::chrono::milliseconds(keep_alive_ms)) << status;
    worker_ = std::move(heir);
  }
  FAIL() << "this machine is too slow to show life";
}

// ---------------------------------------------------------------- what goes wrong below

TEST_F(NvmedTest, shouldTellOfAFileThatDoesNotHoldItsBlocks) {
  ASSERT_NO_FATAL_FAILURE(StartService());
  StartLoad(kMemoryNamespace);
  ASSERT_NO_FATAL_FAILURE(ConnectHost());
  const SubmissionEntry last = BlocksOf(IoOpcode::kRead, kFileNamespace, kBlocks - 8, 8);
  const SubmissionEntry first = BlocksOf(IoOpcode::kRead, kFileNamespace, 0, 8);
  ASSERT_OK(ExpectSuccess(host_->io().Execute(last, ToHost(4096)), "Read"));
  std::filesystem::resize_file(FilePath(), kNamespaceBytes / 2);
  ExpectStatus(host_->io().Execute(last, ToHost(4096, true)), StatusCode::kUnrecoveredReadError);
  ASSERT_OK(ExpectSuccess(host_->io().Execute(first, ToHost(4096)), "Read"));
  const auto health = host_->ReadHealthLog();
  ASSERT_OK(health);
  EXPECT_EQ(health->host_read_commands[0], 2u);
  EXPECT_EQ(health->error_log_entries[0], 1u);
  ASSERT_OK(host_->Disconnect());
  ASSERT_NO_FATAL_FAILURE(ExpectProgress());
  ExpectNothingLost();
}

// ---------------------------------------------------------------- configuration

TEST_F(NvmedTest, shouldRefuseToTakeOverWithAnotherPlanForTheBuffers) {
  ASSERT_NO_FATAL_FAILURE(StartService());
  StartLoad(kFileNamespace);
  ASSERT_NO_FATAL_FAILURE(ExpectProgress());
  ExampleOptions options;
  options.version = 2;
  options.config = WriteConfig("larger", "max_transfer_bytes: 16384");
  ASSERT_NO_FATAL_FAILURE(
      ExpectRefused(options, "max_transfer_bytes 16384: the service began with 32768"));

  // So an upgrade to it does not happen.
  harness::UpgradeOptions upgrade;
  upgrade.program = "nvmed-v2";
  upgrade.plan.set_replace_arguments(true);
  for (const std::string& argument : ArgumentsOf(options)) upgrade.plan.add_arguments(argument);
  const auto begun = cluster_->StartUpgrade(upgrade);
  ASSERT_OK(begun);
  const auto ended = cluster_->WaitUntilUpgradeEnds(begun->id());
  ASSERT_OK(ended);
  EXPECT_NE(ended->phase(), v1::UPGRADE_PHASE_COMPLETED) << ended->ShortDebugString();
  EXPECT_TRUE(cluster_->OwnsAllShards(worker_->id));
  ASSERT_NO_FATAL_FAILURE(ExpectProgress());
  ExpectNothingLost();
}

TEST_F(NvmedTest, shouldRefuseAConfigurationThatDoesNotFitAndSayWhy) {
  ASSERT_NO_FATAL_FAILURE(StartCluster());
  const std::tuple<std::string, std::string, const char*> cases[] = {
      {"max_transfer_bytes: 12288", "", "max_transfer_bytes: 12288: choose a power of two"},
      {"max_transfer_bytes: 16777216", "", "raise buffer_bytes to"},
      {right_fields_, "namespaces { id: 1 memory { bytes: 4096 } }",
       "namespaces[1].id: 1 is there twice"},
      {right_fields_, "namespaces { id: 7 file { path: \"/nowhere/blocks\" } }",
       "open /nowhere/blocks"},
      {right_fields_ + " no_such_field: 1", "", "no_such_field"},
  };
  for (const auto& [fields, more, reason] : cases) {
    SCOPED_TRACE(reason);
    ExampleOptions options;
    options.config = WriteConfig("wrong", fields, more);
    ASSERT_NO_FATAL_FAILURE(ExpectRefused(options, reason));
  }
}

}  // namespace
}  // namespace baton::nvmed
