//! The declarations beside those of the header, by a compiler of C.

use std::mem::{offset_of, size_of};
use std::process::{Command, Stdio};

use super::*;

/// Each struct with its size, and each field that is used or lies last with its offset.
macro_rules! layouts {
    ($($rust:ident as $c:literal { $($field:ident $(as $inner:literal)?),* })*) => {
        [$(
            $((
                format!("offsetof(struct {}, {})", $c, [$($inner,)? stringify!($field)][0]),
                offset_of!($rust, $field),
            ),)*
        )*]
    };
}

/// Structs that are declared whole.
macro_rules! sizes {
    ($($rust:ident as $c:literal),*) => { [$((format!("sizeof({})", $c), size_of::<$rust>())),*] };
}

fn expected() -> Vec<(String, usize)> {
    let mut all = layouts! {
        Context as "ibv_context" { ops }
        ContextOps as "ibv_context_ops" { poll_cq, req_notify_cq, post_send, post_recv }
        Mr as "ibv_mr" { lkey, rkey }
        CompChannel as "ibv_comp_channel" { fd }
        Cq as "ibv_cq" { context }
        Qp as "ibv_qp" { context, qp_num }
        PortAttr as "ibv_port_attr" { state, active_mtu, gid_tbl_len, lid, link_layer, port_cap_flags2 }
        GidEntry as "ibv_gid_entry" { gid, gid_index, gid_type, ndev_ifindex }
        QpCap as "ibv_qp_cap" { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data }
        QpInitAttr as "ibv_qp_init_attr" { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all }
        GlobalRoute as "ibv_global_route" { dgid, sgid_index, hop_limit }
        AhAttr as "ibv_ah_attr" { grh, dlid, is_global, port_num }
        QpAttr as "ibv_qp_attr" {
            qp_state, path_mtu, rq_psn, sq_psn, dest_qp_num, qp_access_flags, ah_attr, pkey_index, min_rnr_timer, port_num,
            timeout, retry_cnt, rnr_retry, rate_limit
        }
        Sge as "ibv_sge" { addr, length, lkey }
        SendWr as "ibv_send_wr" {
            wr_id, next, sg_list, num_sge, opcode, send_flags, imm_data, remote_addr as "wr.rdma.remote_addr",
            rkey as "wr.rdma.rkey", _remote_srqn as "qp_type.xrc.remote_srqn", _bind_mw as "bind_mw"
        }
        RecvWr as "ibv_recv_wr" { wr_id, next, sg_list, num_sge }
        Wc as "ibv_wc" { wr_id, status, opcode, byte_len, imm_data, wc_flags, dlid_path_bits }
    }
    .to_vec();
    all.extend(sizes![
        ContextOps as "struct ibv_context_ops",
        Mr as "struct ibv_mr",
        PortAttr as "struct ibv_port_attr",
        Gid as "union ibv_gid",
        GidEntry as "struct ibv_gid_entry",
        QpCap as "struct ibv_qp_cap",
        QpInitAttr as "struct ibv_qp_init_attr",
        GlobalRoute as "struct ibv_global_route",
        AhAttr as "struct ibv_ah_attr",
        QpAttr as "struct ibv_qp_attr",
        Sge as "struct ibv_sge",
        SendWr as "struct ibv_send_wr",
        RecvWr as "struct ibv_recv_wr",
        Wc as "struct ibv_wc"
    ]);
    let constants = [
        ("IBV_PORT_ACTIVE", PORT_ACTIVE as usize),
        ("IBV_LINK_LAYER_ETHERNET", LINK_LAYER_ETHERNET.into()),
        ("IBV_GID_TYPE_IB", GID_TYPE_IB as usize),
        ("IBV_GID_TYPE_ROCE_V2", GID_TYPE_ROCE_V2 as usize),
        ("IBV_QPT_RC", QPT_RC as usize),
        ("IBV_QPS_INIT", QPS_INIT as usize),
        ("IBV_QPS_RTR", QPS_RTR as usize),
        ("IBV_QPS_RTS", QPS_RTS as usize),
        ("IBV_QPS_ERR", QPS_ERR as usize),
        ("IBV_QP_STATE", QP_STATE as usize),
        ("IBV_QP_ACCESS_FLAGS", QP_ACCESS_FLAGS as usize),
        ("IBV_QP_PKEY_INDEX", QP_PKEY_INDEX as usize),
        ("IBV_QP_PORT", QP_PORT as usize),
        ("IBV_QP_AV", QP_AV as usize),
        ("IBV_QP_PATH_MTU", QP_PATH_MTU as usize),
        ("IBV_QP_TIMEOUT", QP_TIMEOUT as usize),
        ("IBV_QP_RETRY_CNT", QP_RETRY_CNT as usize),
        ("IBV_QP_RNR_RETRY", QP_RNR_RETRY as usize),
        ("IBV_QP_RQ_PSN", QP_RQ_PSN as usize),
        ("IBV_QP_MAX_QP_RD_ATOMIC", QP_MAX_QP_RD_ATOMIC as usize),
        ("IBV_QP_MIN_RNR_TIMER", QP_MIN_RNR_TIMER as usize),
        ("IBV_QP_SQ_PSN", QP_SQ_PSN as usize),
        ("IBV_QP_MAX_DEST_RD_ATOMIC", QP_MAX_DEST_RD_ATOMIC as usize),
        ("IBV_QP_DEST_QPN", QP_DEST_QPN as usize),
        ("IBV_ACCESS_LOCAL_WRITE", ACCESS_LOCAL_WRITE as usize),
        ("IBV_ACCESS_REMOTE_WRITE", ACCESS_REMOTE_WRITE as usize),
        ("IBV_WR_RDMA_WRITE_WITH_IMM", WR_RDMA_WRITE_WITH_IMM as usize),
        ("IBV_WR_SEND", WR_SEND as usize),
        ("IBV_WR_SEND_WITH_IMM", WR_SEND_WITH_IMM as usize),
        ("IBV_SEND_SIGNALED", SEND_SIGNALED as usize),
        ("IBV_WC_SUCCESS", WC_SUCCESS as usize),
        ("IBV_WC_WR_FLUSH_ERR", WC_WR_FLUSH_ERR as usize),
        ("IBV_WC_RETRY_EXC_ERR", WC_RETRY_EXC_ERR as usize),
        ("IBV_WC_RECV", WC_RECV as usize),
        ("IBV_WC_RECV_RDMA_WITH_IMM", WC_RECV_RDMA_WITH_IMM as usize),
        ("IBV_WC_WITH_IMM", WC_WITH_IMM as usize),
    ];
    all.extend(constants.map(|(name, value)| (name.to_owned(), value)));
    all
}

#[test]
fn the_declarations_are_those_of_the_header() {
    let place = tempfile::tempdir().unwrap();
    let source = place.path().join("layout.c");
    let header = "#include <infiniband/verbs.h>\n";
    let compiled = |program: &str| {
        std::fs::write(&source, program).unwrap();
        let mut cc = Command::new("cc");
        cc.arg(&source).arg("-o").arg(place.path().join("layout")).stderr(Stdio::piped());
        cc.output()
            .map(|output| (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned()))
    };
    match compiled(&format!("{header}int main(void) {{ return 0; }}")) {
        Ok((true, _)) => {}
        _ => return gleaner_skips::skip("libibverbs-dev", "cc and <infiniband/verbs.h> are not both here"),
    }
    let expected = expected();
    let lines: String =
        expected.iter().map(|(what, _)| format!("    printf(\"%zu\\n\", (size_t)({what}));\n")).collect();
    let program = format!(
        "{header}#include <stddef.h>\n#include <stdio.h>\nint main(void) {{\n{lines}    return 0;\n}}\n"
    );
    let (is_compiled, said) = compiled(&program).unwrap();
    assert!(is_compiled, "{said}");
    let output = Command::new(place.path().join("layout")).output().unwrap();
    let found = String::from_utf8(output.stdout).unwrap();
    let found: Vec<usize> = found.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(found.len(), expected.len());
    let differ: Vec<_> = expected.iter().zip(&found).filter(|((_, ours), theirs)| ours != *theirs).collect();
    assert!(differ.is_empty(), "what, ours, theirs: {differ:?}");
}
