#include "framework/observe/trace/kernel_name.h"

#include <string>

#include "gtest/gtest.h"

namespace tessera {
namespace {

using Kind = DeviceActivity::Kind;

// Symbols of LibTorch 2.11, cuBLAS 13.1, cuDNN 9, NCCL 2.28 and our own, as
// __cxa_demangle() writes them.
constexpr char kFill[] =
    "void at::native::vectorized_elementwise_kernel<4, "
    "at::native::FillFunctor<float>, std::array<char*, 1ul> >(int, "
    "at::native::FillFunctor<float>, std::array<char*, 1ul>)";
constexpr char kCopyTo16Bits[] =
    "void at::native::vectorized_elementwise_kernel<4, "
    "at::native::bfloat16_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda("
    "float)#1}, std::array<char*, 2ul> >(int, "
    "at::native::bfloat16_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda("
    "float)#1}, std::array<char*, 2ul>)";
constexpr char kCast[] =
    "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_"
    "kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}::operator()() "
    "const::{lambda()#7}::operator()() const::{lambda(float)#1}, "
    "std::array<char*, 2ul>, 4, TrivialOffsetCalculator<1, unsigned int>, "
    "TrivialOffsetCalculator<1, unsigned int>, "
    "at::native::memory::LoadWithCast<1>, at::native::memory::StoreWithCast<1> "
    ">(int, at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::"
    "{lambda()#3}::operator()() const::{lambda()#7}::operator()() "
    "const::{lambda(float)#1}, std::array<char*, 2ul>)";
constexpr char kBroadcastAdd[] =
    "void at::native::elementwise_kernel<128, 4, "
    "at::native::gpu_kernel_impl_nocast<at::native::CUDAFunctor_add<float> "
    ">(at::TensorIteratorBase&, at::native::CUDAFunctor_add<float> "
    "const&)::{lambda(int)#1}>(int, "
    "at::native::gpu_kernel_impl_nocast<at::native::CUDAFunctor_add<float> "
    ">(at::TensorIteratorBase&, at::native::CUDAFunctor_add<float> "
    "const&)::{lambda(int)#1})";
constexpr char kSum[] =
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, "
    "at::native::func_wrapper_t<float, at::native::sum_functor<float, float, "
    "float>::operator()(at::TensorIterator&)::{lambda(float, float)#1}>, "
    "unsigned int, float, 4, 4> >(at::native::ReduceOp<float, "
    "at::native::func_wrapper_t<float, at::native::sum_functor<float, float, "
    "float>::operator()(at::TensorIterator&)::{lambda(float, float)#1}>, "
    "unsigned int, float, 4, 4>)";
constexpr char kCutlass80[] =
    "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x128_16x5_tn_"
    "align4>(cutlass_80_tensorop_s1688gemm_128x128_16x5_tn_align4::Params)";
constexpr char kSplitK[] =
    "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16, "
    "float, __nv_bfloat16, true, float, __nv_bfloat16, __nv_bfloat16, true, "
    "false, false, false>(cublasLt::cublasSplitKParams<float>, float const*)";
constexpr char kNvjet[] = "nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopB_TNT";
constexpr char kXmma[] =
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_"
    "warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas";
constexpr char kCutlass3[] =
    "void cutlass3x_sm90_tensorop_s64x128x16gemm_f16_f16_f32_void_f16_"
    "128x128x64_2x1x1_0_tnn_align8_warpspecialized_pingpong_epi_tma(Params)";
constexpr char kAllReduce[] =
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>"
    ")";
constexpr char kCudnnAttention[] =
    "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_"
    "64x64x64_4x1x1_kernel0_0";
constexpr char kFlash2[] =
    "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 64, "
    "4, false, false, cutlass::bfloat16_t, Flash_kernel_traits<64, 128, 64, 4, "
    "cutlass::bfloat16_t> >, false, true>(pytorch_flash::Flash_fwd_params)";
constexpr char kSoftmax[] =
    "void (anonymous namespace)::softmax_warp_forward<c10::BFloat16, float, "
    "float, 9, true, false>(float*, c10::BFloat16 const*, int, int, int, bool "
    "const*, int, bool)";
constexpr char kNormBackward[] =
    "void tessera::(anonymous namespace)::RmsNormBackward<float, "
    "__nv_bfloat16, 4>("
    "tessera::RmsNormParams)";
constexpr char kSwiGlu[] =
    "void tessera::(anonymous namespace)::SwiGluForward<__nv_bfloat16, "
    "8>(__nv_bfloat16 const*, __nv_bfloat16*, long)";
constexpr char kHopper[] =
    "void tessera::flash::hopper::ForwardKernel<tessera::flash::hopper::"
    "ForwardTraits<__nv_bfloat16, 80, 2, 128, true> "
    ">(tessera::flash::hopper::ForwardMaps, "
    "tessera::flash::hopper::ForwardArgs)";
constexpr char kAdamW[] =
    "void tessera::(anonymous namespace)::AdamWUpdate<float, __nv_bfloat16, "
    "__nv_bfloat16>(tessera::AdamWOptions, tessera::AdamWBuffers, "
    "tessera::AdamWStep const*, bool const*)";

TEST(KernelNameTest, LibraryKernels) {
  EXPECT_EQ(ReadableKernelName(kFill),
            "vectorized_elementwise_kernel<4, FillFunctor<float>>");
  EXPECT_EQ(
      ReadableKernelName(kCopyTo16Bits),
      "vectorized_elementwise_kernel<4, bfloat16_copy_kernel_cuda{float#1}>");
  EXPECT_EQ(ReadableKernelName(kCast),
            "unrolled_elementwise_kernel<direct_copy_kernel_cuda{#3}{#7}"
            "{float#1}, 4>");
  EXPECT_EQ(ReadableKernelName(kBroadcastAdd),
            "elementwise_kernel<128, 4, CUDAFunctor_add<float>{int#1}>");
  EXPECT_EQ(ReadableKernelName(kSum),
            "reduce_kernel<512, 1, sum_functor<float, float, float>"
            "{float, float#1}>");
  EXPECT_EQ(ReadableKernelName(kCutlass80),
            "cutlass_80_tensorop_s1688gemm_128x128_16x5_tn_align4");
  EXPECT_EQ(ReadableKernelName(kNvjet), kNvjet);
  EXPECT_EQ(ReadableKernelName(kXmma), kXmma);
  EXPECT_EQ(ReadableKernelName(kAllReduce),
            "ncclDevKernel_AllReduce_Sum_bf16_RING_LL");
  EXPECT_EQ(ReadableKernelName(kSoftmax),
            "softmax_warp_forward<bf16, float, float, 9, true, false>");
  EXPECT_EQ(ReadableKernelName("SoftmaxForward"), "SoftmaxForward");
}

TEST(KernelNameTest, OwnKernels) {
  EXPECT_EQ(ReadableKernelName(kNormBackward),
            "RmsNormBackward<float, bf16, 4>");
  EXPECT_EQ(ReadableKernelName(kSwiGlu), "SwiGluForward<bf16, 8>");
  EXPECT_EQ(ReadableKernelName(kAdamW), "AdamWUpdate<float, bf16, bf16>");
  EXPECT_EQ(ReadableKernelName(kHopper),
            "flash::hopper::ForwardKernel<ForwardTraits<bf16, 80, 2, 128, "
            "true>>");
}

TEST(KernelNameTest, OtherDemanglersWriteTheSameKernel) {
  EXPECT_EQ(ReadableKernelName("void <unnamed>::softmax_warp_forward<c10::"
                               "BFloat16, float, float, (int)9, (bool)1, "
                               "(bool)0>(T2 *, const T1 *, int)"),
            "softmax_warp_forward<bf16, float, float, 9, 1, 0>");
}

TEST(KernelNameTest, WhatTheShortNameLeavesOutStandsInTheFullOne) {
  std::string uncast(kCast);
  uncast.replace(uncast.find("LoadWithCast<1>"), 15, "LoadWithoutCast");
  EXPECT_EQ(ReadableKernelName(uncast), ReadableKernelName(kCast));
  EXPECT_NE(FullKernelName(uncast), FullKernelName(kCast));
  EXPECT_EQ(FullKernelName(kFill),
            "vectorized_elementwise_kernel<4, FillFunctor<float>, array<char*, "
            "1>>");
  // The signature is a part of a lambda's identity.
  std::string of_double(kCast);
  for (size_t at = 0;
       (at = of_double.find("lambda(float)", at)) != std::string::npos;) {
    of_double.replace(at, 13, "lambda(double)");
  }
  EXPECT_NE(ReadableKernelName(of_double), ReadableKernelName(kCast));
}

TEST(KernelNameTest, OtherTextStays) {
  // On a CPU an activity is named after its op.
  EXPECT_EQ(ReadableKernelName("+ qkv"), "+ qkv");
  EXPECT_EQ(ReadableKernelName(""), "");
  for (const char* damaged : {"a > b", "x<", "f(", "Kernel<>", ")(", "::"}) {
    EXPECT_NE(ReadableKernelName(damaged), "") << damaged;
  }
}

TEST(KernelClassTest, NamesThatSettleIt) {
  const KernelIssuer nobody, optimizer{.phase = "optimizer"};
  EXPECT_EQ(ClassOf(Kind::kCopy, "copy H2D", nobody), KernelClass::kCopy);
  EXPECT_EQ(ClassOf(Kind::kCopy, "copy P2P", optimizer),
            KernelClass::kCommunication);
  EXPECT_EQ(ClassOf(Kind::kFill, "fill", optimizer), KernelClass::kCopy);
  for (const char* product : {kNvjet, kXmma, kCutlass3, kCutlass80, kSplitK,
                              "ampere_sgemm_128x64_tn", "gemv2T_kernel_val"}) {
    EXPECT_EQ(ClassOf(Kind::kKernel, product, nobody), KernelClass::kGemm)
        << product;
    // Those of NAIVE attention.
    EXPECT_EQ(ClassOf(Kind::kKernel, product,
                      {.phase = "forward", .op_kind = "attention"}),
              KernelClass::kGemm);
  }
  for (const char* fused : {kHopper, kFlash2, kCudnnAttention,
                            "fmha_cutlassF_bf16_aligned_64x64_rf_sm80"}) {
    EXPECT_EQ(ClassOf(Kind::kKernel, fused, nobody), KernelClass::kAttention)
        << fused;
  }
  EXPECT_EQ(ClassOf(Kind::kKernel, kAllReduce, {.phase = "clip"}),
            KernelClass::kCommunication);
  EXPECT_TRUE(IsCommunication(kAllReduce));
  EXPECT_FALSE(IsCommunication(kSum));
}

TEST(KernelClassTest, PhasesAndOps) {
  const auto of_op = [](const char* symbol, const char* kind) {
    return ClassOf(Kind::kKernel, symbol,
                   {.phase = "backward", .op_kind = kind});
  };
  EXPECT_EQ(of_op(kNormBackward, "rms_norm"), KernelClass::kNorm);
  EXPECT_EQ(of_op(kSwiGlu, "swiglu"), KernelClass::kElementwise);
  EXPECT_EQ(of_op(kBroadcastAdd, "add_residual"), KernelClass::kElementwise);
  EXPECT_EQ(of_op(kSoftmax, "attention"), KernelClass::kAttention);
  EXPECT_EQ(of_op(kSwiGlu, "cross_entropy"), KernelClass::kReduction);
  EXPECT_EQ(of_op(kCast, "linear"), KernelClass::kElementwise);
  EXPECT_EQ(of_op("w13", "linear"), KernelClass::kGemm);
  for (const char* phase : {"clip", "optimizer"}) {
    EXPECT_EQ(ClassOf(Kind::kKernel, kAdamW, {.phase = phase}),
              KernelClass::kOptimizer);
    EXPECT_EQ(ClassOf(Kind::kKernel, kFill, {.phase = phase}),
              KernelClass::kOptimizer);
  }
}

TEST(KernelClassTest, LibraryKernelsOutsideOfOps) {
  const KernelIssuer forward{.phase = "forward"};
  EXPECT_EQ(ClassOf(Kind::kKernel, kFill, forward), KernelClass::kElementwise);
  EXPECT_EQ(ClassOf(Kind::kKernel, kSum, forward), KernelClass::kReduction);
  EXPECT_EQ(ClassOf(Kind::kKernel, kSoftmax, forward), KernelClass::kReduction);
  EXPECT_EQ(ClassOf(Kind::kKernel,
                    "void at::native::(anonymous namespace)::vectorized_layer_"
                    "norm_kernel<float, float>(int, float)",
                    forward),
            KernelClass::kNorm);
  EXPECT_EQ(ClassOf(Kind::kKernel, "VectorAdd", forward), KernelClass::kOther);
  // Ours say what they are.
  EXPECT_EQ(ClassOf(Kind::kKernel, kNormBackward, {}), KernelClass::kNorm);
  EXPECT_EQ(ClassOf(Kind::kKernel, kSwiGlu, {}), KernelClass::kElementwise);
  EXPECT_EQ(ClassOf(Kind::kKernel, kAdamW, {}), KernelClass::kOptimizer);
  for (int i = 0; i < kKernelClasses; ++i) {
    EXPECT_FALSE(KernelClassName(static_cast<KernelClass>(i)).empty());
  }
}

}  // namespace
}  // namespace tessera
