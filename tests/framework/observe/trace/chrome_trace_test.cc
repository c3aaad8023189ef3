#include "framework/observe/trace/chrome_trace.h"

#include <signal.h>
#include <sys/resource.h>
#include <zlib.h>

#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "framework/base/file.h"
#include "framework/observe/trace/gzip_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/framework/observe/trace/trace_builder.h"

namespace tessera::testing {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;
using Kind = DeviceActivity::Kind;
using Level = HostRange::Level;

std::string PathOf(const std::string& name) {
  return absl::StrCat(::testing::TempDir(), "/", name);
}

std::string Unzipped(const std::string& path) {
  gzFile file = gzopen(path.c_str(), "rb");
  std::string text;
  char piece[4096];
  for (int size; (size = gzread(file, piece, sizeof(piece))) > 0;) {
    text.append(piece, size);
  }
  EXPECT_EQ(gzclose(file), Z_OK);
  return text;
}

Json Written(const Trace& trace) {
  const std::string path = PathOf("trace.json.gz");
  const absl::Status status = WriteChromeTrace(trace, path);
  EXPECT_TRUE(status.ok()) << status;
  return Json::parse(Unzipped(path));
}

// Events of a category, by name.
std::map<std::string, Json> Events(const Json& document,
                                   const std::string& category) {
  std::map<std::string, Json> events;
  for (const Json& event : document["traceEvents"]) {
    if (event["ph"] == "X" && event["cat"] == category) {
      events[event["name"]] = event;
    }
  }
  return events;
}

TraceBuilder OneOfEach() {
  TraceBuilder b;
  constexpr int64_t kBase = 1'700'000'000'000'000'000;
  b.trace().rank = 3;
  b.trace().world_size = 8;
  const int step = b.Step("step_7", kBase, kBase + 100'000);
  const int forward =
      b.Range(Level::kPhase, "forward", step, kBase + 1000, kBase + 50'000);
  b.Range(Level::kOp, "qkv", forward, kBase + 2000, kBase + 9000);
  b.Call("cudaLaunchKernelExC_v11060", 11, kBase + 3000, kBase + 4500);
  b.Call("cuLaunchKernelEx", 11, kBase + 3100, kBase + 4400);
  b.Call("cudaMemcpyAsync_v3020", 12, kBase + 10'000, kBase + 11'000);
  b.Call("cudaMemsetAsync_v3020", 13, kBase + 12'000, kBase + 13'000);
  b.Call("cudaStreamSynchronize_v3020", 14, kBase + 60'000, kBase + 90'000);
  const int kernel =
      b.Kernel("void f<\"quoted\\\">(int)", 11, kBase + 20'001, kBase + 30'123);
  b.trace().activities[kernel].grid = {4, 5, 6};
  b.trace().activities[kernel].registers = 168;
  const int copy =
      b.Activity(Kind::kCopy, "copy H2D", 12, kBase + 31'000, kBase + 33'000);
  b.trace().activities[copy].bytes = 5000;
  b.Activity(Kind::kFill, "fill", 13, kBase + 34'000, kBase + 35'000,
             /*stream=*/20);
  return b;
}

TEST(ChromeTraceTest, EventsHaveKinetosForm) {
  const Json document = Written(OneOfEach().Build());
  EXPECT_EQ(document["schemaVersion"], 1);
  EXPECT_EQ(document["distributedInfo"]["rank"], 3);
  EXPECT_EQ(document["distributedInfo"]["world_size"], 8);
  EXPECT_EQ(document["deviceProperties"][0]["name"], "NVIDIA H200");
  EXPECT_EQ(document["baseTimeNanoseconds"], 1'700'000'000'000'000'000);

  const Json step = Events(document, "user_annotation").at("ProfilerStep#7");
  EXPECT_EQ(step["ts"], 0);
  EXPECT_EQ(step["dur"], 100);
  EXPECT_EQ(step["tid"], TraceBuilder::kThread);
  EXPECT_TRUE(Events(document, "user_annotation").contains("forward"));
  const Json op = Events(document, "cpu_op").at("qkv");

  const Json kernel =
      Events(document, "kernel").at("void f<\"quoted\\\">(int)");
  EXPECT_DOUBLE_EQ(kernel["ts"], 20.001);
  EXPECT_DOUBLE_EQ(kernel["dur"], 10.122);
  EXPECT_EQ(kernel["pid"], 0);
  EXPECT_EQ(kernel["tid"], 7);
  EXPECT_EQ(kernel["args"]["stream"], 7);
  EXPECT_EQ(kernel["args"]["correlation"], 11);
  EXPECT_EQ(kernel["args"]["External id"], op["args"]["External id"]);
  EXPECT_EQ(kernel["args"]["grid"], Json({4, 5, 6}));
  EXPECT_EQ(kernel["args"]["registers per thread"], 168);

  const Json copy = Events(document, "gpu_memcpy").at("Memcpy HtoD");
  EXPECT_EQ(copy["args"]["bytes"], 5000);
  EXPECT_DOUBLE_EQ(copy["args"]["memory bandwidth (GB/s)"], 2.5);
  EXPECT_FALSE(copy["args"].contains("External id"));
  const Json fill = Events(document, "gpu_memset").at("Memset (Device)");
  EXPECT_EQ(fill["tid"], 20);

  const auto calls = Events(document, "cuda_runtime");
  EXPECT_EQ(calls.at("cudaLaunchKernelExC")["args"]["correlation"], 11);
  EXPECT_EQ(calls.at("cudaLaunchKernelExC")["args"]["External id"],
            op["args"]["External id"]);
  EXPECT_TRUE(calls.contains("cudaMemcpyAsync"));
  EXPECT_EQ(calls.at("cudaStreamSynchronize")["args"]["correlation"], 14);
  // The call within has none, or its kernel would have two.
  EXPECT_EQ(Events(document, "cuda_driver").at("cuLaunchKernelEx")["args"],
            Json::object());
}

TEST(ChromeTraceTest, ArrowsLeadFromCallsToActivities) {
  const Json document = Written(OneOfEach().Build());
  std::map<int, std::pair<int, int>> ends;
  for (const Json& event : document["traceEvents"]) {
    if (event["ph"] == "s") ++ends[event["id"]].first;
    if (event["ph"] == "f") {
      ++ends[event["id"]].second;
      EXPECT_EQ(event["bp"], "e");
    }
  }
  ASSERT_EQ(ends.size(), 3u);  // not the synchronisation
  for (const auto& [id, count] : ends) {
    EXPECT_EQ(count, std::pair(1, 1)) << id;
  }
}

TEST(ChromeTraceTest, PhasesStandOnTheDeviceToo) {
  const Json document = Written(OneOfEach().Build());
  std::vector<Json> spans;
  for (const Json& event : document["traceEvents"]) {
    if (event.value("cat", "") == "gpu_user_annotation") spans.push_back(event);
  }
  ASSERT_EQ(spans.size(), 2u);  // one for each stream
  EXPECT_EQ(spans[0]["name"], "forward");
  EXPECT_DOUBLE_EQ(spans[0]["ts"], 20.001);
  EXPECT_DOUBLE_EQ(spans[0]["dur"], 12.999);
  EXPECT_EQ(spans[0]["tid"], 7);
  EXPECT_EQ(spans[1]["tid"], 20);
}

TEST(ChromeTraceTest, AGraphsKernelsKeepTheirNodes) {
  TraceBuilder b;
  b.Call("cudaGraphLaunch_v10000", 1, 0, 10);
  for (int i = 0; i < 3; ++i) {
    const int kernel = b.Kernel(absl::StrCat("k", i), 1, 20 + i, 21 + i);
    b.trace().activities[kernel].graph_node = 100 + i;
  }
  const auto kernels = Events(Written(b.Build()), "kernel");
  EXPECT_EQ(kernels.at("k2")["args"]["graph node id"], 102);
}

TEST(ChromeTraceTest, EmptyTracesAndOddNames) {
  EXPECT_EQ(Written({})["traceEvents"].size(), 4u);  // the names of tracks
  TraceBuilder b;
  b.Kernel("bad \xff utf-8, \n, \x01", 1, 0, 1);
  EXPECT_EQ(Events(Written(b.Build()), "kernel").size(), 1u);
}

TEST(ChromeTraceTest, UnwritableFoldersAreNamed) {
  const absl::Status status =
      WriteChromeTrace({}, PathOf("missing/folder/trace.json.gz"));
  EXPECT_THAT(status.message(), HasSubstr("cannot create "));
  EXPECT_THAT(status.message(), HasSubstr("missing/folder/trace.json.gz"));
}

// A limit on file sizes fails writes as a full disk does.
TEST(ChromeTraceTest, AFailedWriteLeavesNoFile) {
  const std::string path = PathOf("full.json.gz");
  std::mt19937 random(1);
  for (const int kernels : {1, 20'000}) {  // fails at the end, or before
    TraceBuilder b;
    for (int i = 0; i < kernels; ++i) {
      b.Kernel(absl::StrCat("k", random()), b.Launch(i, i + 1), i, i + 1);
    }
    rlimit before;
    ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
    const auto ignored = signal(SIGXFSZ, SIG_IGN);
    const rlimit small = {.rlim_cur = 100, .rlim_max = before.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
    const absl::Status status = WriteChromeTrace(b.Build(), path);
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, ignored);
    EXPECT_THAT(status.message(), HasSubstr("cannot write"));
    EXPECT_THAT(status.message(), HasSubstr(path));
    EXPECT_FALSE(FileExists(path));
  }
}

TEST(GzipFileTest, WritesWhatItIsGiven) {
  const std::string path = PathOf("file.gz");
  std::string expected;
  {
    auto file = GzipFile::Create(path);
    ASSERT_TRUE(file.ok()) << file.status();
    std::mt19937 random(1);
    for (int i = 0; i < 300; ++i) {
      std::string piece(random() % 5000, 0);
      for (char& c : piece) c = static_cast<char>(random());
      expected += piece;
      ASSERT_TRUE((*file)->Write(piece).ok());
    }
    ASSERT_TRUE((*file)->Close().ok());
  }
  EXPECT_TRUE(Unzipped(path) == expected);
}

TEST(GzipFileTest, OnlyAFinishedFileReplacesAnother) {
  const std::string folder = PathOf("replaced");
  ASSERT_TRUE(MakeDirectory(folder).ok());
  const std::string path = folder + "/file.gz";
  const auto write = [](const std::string& to, absl::string_view text,
                        bool finish) {
    auto file = GzipFile::Create(to);
    ASSERT_TRUE(file.ok()) << file.status();
    ASSERT_TRUE((*file)->Write(text).ok());
    if (finish) {
      ASSERT_TRUE((*file)->Close().ok());
    }
  };
  write(path, "unfinished", false);
  EXPECT_THAT(ListDirectory(folder).value(), ::testing::IsEmpty());
  write(path, "first", true);
  write(path, "unfinished", false);
  EXPECT_EQ(Unzipped(path), "first");
  write(path, "second", true);
  EXPECT_EQ(Unzipped(path), "second");
  const std::string link = PathOf("link.gz");
  std::filesystem::create_symlink(path, link);
  write(link, "third", true);
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_EQ(Unzipped(path), "third");
  EXPECT_THAT(ListDirectory(folder).value(), ::testing::ElementsAre("file.gz"));
}

}  // namespace
}  // namespace tessera::testing
